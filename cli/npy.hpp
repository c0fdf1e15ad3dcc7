// NumPy's array files: .npy (format versions 1 to 3) and .npz.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "fa3/fa3.h"

namespace fa3::cli {

/// A file that cannot be read or written, or does not hold what it should; the message names it.
struct FileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Element types read from files; all little-endian.
enum class FileDtype { f16, bf16, f32, f64 };
const char* file_dtype_name(FileDtype dtype);

struct Array {
  std::string source;  // for messages: "q.npy" or "layer.npz: q"
  FileDtype dtype = FileDtype::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;  // elements in C order

  std::int64_t elements() const;
  std::string shape_text() const;  // "[1, 2, 3]"
};

/// The contents of a .npy file. Element types: <f2, <f4, <f8, and for bf16, which NumPy does not have, `bfloat16` or a
/// 2-byte void (what ml_dtypes' bfloat16 is saved as). Fortran order is turned into C order. Throws FileError.
Array parse_npy(const std::string& source, std::span<const std::byte> file);

/// The array of a .npy file. Throws FileError, also if `path` is anything but a regular file.
Array load_npy(const std::filesystem::path& path);

/// The arrays called `names` in a .npz file, stored or deflated. Throws FileError, also if one is missing or `path` is
/// anything but a regular file.
std::vector<Array> load_npz(const std::filesystem::path& path, const std::vector<std::string>& names);

/// The elements of `array` rounded to `dtype`. Throws FileError if a finite value becomes infinite.
std::vector<std::byte> convert(const Array& array, fa3_dtype dtype);

/// Throws FileError unless a file can be put at `path`: its directory must exist and be writable, and what is there
/// already must be a regular file. Symbolic links are followed. Leaves nothing behind.
void check_writable(const std::filesystem::path& path);

/// Whether writing to `a` and writing to `b` write the same file. Symbolic links are followed, also to files that do
/// not exist yet.
bool same_output(const std::filesystem::path& a, const std::filesystem::path& b);

/// From now on SIGHUP, SIGINT, SIGTERM and SIGXFSZ, unless they are ignored, remove the temporary files of
/// check_writable and NpyFile before they end the process.
void remove_temporaries_on_signals();

/// A .npy file on its way to `path` or, if that is a symbolic link, to where it leads: written under another name, and
/// given its own by commit(). Without that it is removed.
class NpyFile {
 public:
  /// `data` is in C order, of type f16 or f32. Throws FileError.
  NpyFile(std::filesystem::path path, fa3_dtype dtype, const std::vector<std::int64_t>& shape,
          std::span<const std::byte> data);
  NpyFile(const NpyFile&) = delete;
  ~NpyFile();
  void commit();

 private:
  std::filesystem::path path_, target_, temporary_;  // path_ is for messages
};

}  // namespace fa3::cli
