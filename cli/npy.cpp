#include "npy.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zip.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "dtype.hpp"

namespace fa3::cli {
namespace {

using std::int64_t;
namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the element types of files are little-endian");

std::size_t bytes_of(FileDtype dtype) {
  switch (dtype) {
    case FileDtype::f32: return 4;
    case FileDtype::f64: return 8;
    default: return 2;
  }
}

std::string system_error() { return std::strerror(errno); }

/// The header's Python dict: {'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }
class HeaderParser {
 public:
  HeaderParser(const std::string& source, std::string_view text) : source_(source), text_(text) {}

  void parse() {
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && !descr) {
        if (peek() == '[') throw FileError(source_ + ": holds a structured array; wanted is a plain array of numbers");
        descr = quoted();
      } else if (key == "fortran_order" && !fortran_order) {
        fortran_order = boolean();
      } else if (key == "shape" && !shape) {
        shape = tuple();
      } else {
        malformed();
      }
      if (!accept(',') && peek() != '}') malformed();
    }
    if (!at_end() || !descr || !fortran_order || !shape) malformed();
  }

  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;

 private:
  [[noreturn]] void malformed() const {
    throw FileError(source_ + ": its .npy header is malformed; it must be a dict of descr, fortran_order and shape");
  }
  char peek() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool at_end() {
    peek();
    return at_ == text_.size();
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) malformed();
  }
  std::string quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') malformed();
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) malformed();
    std::string result(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return result;
  }
  bool boolean() {
    peek();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}}) {
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return value;
    }
    malformed();
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> result;
    expect('(');
    while (!accept(')')) {
      if (!std::isdigit(static_cast<unsigned char>(peek()))) malformed();
      int64_t value = 0;
      for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])); ++at_)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value))
          malformed();
      result.push_back(value);
      if (!accept(',') && peek() != ')') malformed();
    }
    return result;
  }

  const std::string& source_;
  std::string_view text_;
  std::size_t at_ = 0;
};

FileDtype parse_descr(const std::string& source, const std::string& descr) {
  if (descr == "<f2") return FileDtype::f16;
  if (descr == "<f4") return FileDtype::f32;
  if (descr == "<f8") return FileDtype::f64;
  if (descr == "bfloat16" || descr == "<V2" || descr == "|V2") return FileDtype::bf16;
  constexpr const char* allowed = "allowed are <f2, <f4, <f8 and, as bf16, bfloat16 or a 2-byte void (V2)";
  if (descr.starts_with('>'))
    throw FileError(fmt::format("{}: element type is {}, which is big-endian; {}", source, descr, allowed));
  throw FileError(fmt::format("{}: element type is {}; {}", source, descr, allowed));
}

/// The elements of a Fortran-ordered array, put into C order.
std::vector<std::byte> c_order(std::span<const std::byte> data, const std::vector<int64_t>& shape,
                               std::size_t element) {
  std::vector<std::byte> result(data.size());
  std::vector<int64_t> index(shape.size(), 0);
  for (std::size_t to = 0; to < data.size(); to += element) {
    std::size_t from = 0;
    for (std::size_t i = shape.size(); i-- > 0;) from = from * std::size_t(shape[i]) + std::size_t(index[i]);
    std::memcpy(result.data() + to, data.data() + from * element, element);
    for (std::size_t i = shape.size(); i-- > 0 && ++index[i] == shape[i];) index[i] = 0;
  }
  return result;
}

constexpr std::size_t chunk = 1 << 20;  // bytes read at once

/// Throws FileError for a directory, a device or a pipe: they have no end, or one that must be waited for.
void require_regular(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw FileError(fmt::format("{}: is {}; wanted is a regular file", path.string(),
                                fs::is_directory(status) ? "a directory"
                                : fs::is_fifo(status)    ? "a pipe"
                                                         : "a device or the like"));
}

std::vector<std::byte> read_file(const fs::path& path) {
  const std::string name = path.string();
  require_regular(path);
  const int file = open(name.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw FileError(fmt::format("{}: cannot be opened: {}", name, system_error()));
  std::vector<std::byte> bytes;
  std::error_code no_size;
  const std::uintmax_t size = fs::file_size(path, no_size);
  if (!no_size) bytes.reserve(size + chunk);
  for (;;) {
    const std::size_t before = bytes.size();
    bytes.resize(before + chunk);
    const ssize_t got = read(file, bytes.data() + before, chunk);
    if (got < 0) {
      const std::string why = system_error();
      close(file);
      throw FileError(fmt::format("{}: cannot be read: {}", name, why));
    }
    bytes.resize(before + std::size_t(got));
    if (got == 0) break;
  }
  close(file);
  return bytes;
}

template <class From>
double load_element(const std::byte* from) {
  From x;
  std::memcpy(&x, from, sizeof(x));
  if constexpr (std::is_same_v<From, double>)
    return x;
  else
    return to_float(x);
}

template <class F>
decltype(auto) with_file_dtype(FileDtype dtype, F&& f) {
  switch (dtype) {
    case FileDtype::f16: return f(Half{});
    case FileDtype::bf16: return f(Bfloat16{});
    case FileDtype::f64: return f(double{});
    default: return f(float{});
  }
}

fs::path temporary_name(const fs::path& path) { return fs::path(path).concat(fmt::format(".{}.tmp", getpid())); }

/// The temporary files there are, for the signal handler, which may run at any instruction and must not allocate.
struct Temporary {
  std::atomic<bool> exists = false;  // and its name is complete
  char name[PATH_MAX];
};
static_assert(std::atomic<bool>::is_always_lock_free);
std::array<Temporary, 4> temporaries;  // O and LSE are two

void remember(const std::string& name) {
  if (name.size() >= PATH_MAX) return;  // the system makes no such file
  for (Temporary& temporary : temporaries) {
    if (temporary.exists) continue;
    std::memcpy(temporary.name, name.c_str(), name.size() + 1);
    temporary.exists = true;
    return;
  }
  throw std::logic_error("too many temporary files");
}

void forget(const std::string& name) {
  for (Temporary& temporary : temporaries)
    if (temporary.exists && name == temporary.name) temporary.exists = false;
}

extern "C" void remove_temporaries(int signal) {
  for (const Temporary& temporary : temporaries)
    if (temporary.exists) unlink(temporary.name);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// Opens a new file next to `target`, which must not exist yet; `path` is for the message.
int create_temporary(const fs::path& path, const fs::path& target) {
  const fs::path name = temporary_name(target);
  remember(name);
  const int file = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) {
    const std::string why = system_error();
    forget(name);
    throw FileError(fmt::format("{}: cannot be written: {}", path.string(), why));
  }
  return file;
}

void remove_temporary(const fs::path& name) {
  unlink(name.c_str());
  forget(name);
}

/// Where the symbolic links of `path` lead, whether anything is there or not; `path` if it is none.
fs::path resolve(const fs::path& path) {
  constexpr int most_links = 40;  // as many as the system follows
  fs::path target = path;
  std::error_code none;
  for (int links = 0; fs::is_symlink(fs::symlink_status(target, none)); ++links) {
    if (links == most_links)
      throw FileError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(ELOOP)));
    target = target.parent_path() / fs::read_symlink(target);
  }
  return target;
}

/// Writes everything; false, with errno set, if that fails.
bool write_all(int file, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t wrote = write(file, data.data(), data.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    data = data.subspan(std::size_t(wrote));
  }
  return true;
}

}  // namespace

const char* file_dtype_name(FileDtype dtype) {
  constexpr const char* names[] = {"f16", "bf16", "f32", "f64"};
  return names[int(dtype)];
}

int64_t Array::elements() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

std::string Array::shape_text() const { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Array parse_npy(const std::string& source, std::span<const std::byte> file) {
  if (file.empty()) throw FileError(source + ": is empty (0 bytes); wanted is a .npy file");
  constexpr std::string_view magic = "\x93NUMPY";
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (!text.starts_with(magic)) throw FileError(source + ": is not a .npy file (its first bytes are not \\x93NUMPY)");
  const auto truncated = [&] { return FileError(source + ": is truncated within its .npy header"); };
  if (file.size() < 8) throw truncated();
  const int version = int(file[6]);
  if (version < 1 || version > 3)
    throw FileError(fmt::format("{}: has .npy format version {}; versions 1 to 3 are read", source, version));
  const std::size_t prefix = version == 1 ? 10 : 12;
  if (file.size() < prefix) throw truncated();
  std::size_t header_bytes = 0;
  for (std::size_t i = prefix; i-- > 8;) header_bytes = header_bytes << 8 | std::size_t(file[i]);
  if (file.size() - prefix < header_bytes) throw truncated();

  HeaderParser header(source, text.substr(prefix, header_bytes));
  header.parse();
  Array array{source, parse_descr(source, *header.descr), *header.shape, {}};
  int64_t bytes = int64_t(bytes_of(array.dtype));
  for (const int64_t extent : array.shape)
    if (__builtin_mul_overflow(bytes, extent, &bytes))
      throw FileError(fmt::format("{}: shape {} is more than any memory holds", array.source, array.shape_text()));
  const std::span<const std::byte> data = file.subspan(prefix + header_bytes);
  if (data.size() < std::size_t(bytes))
    throw FileError(fmt::format("{}: is truncated: shape {} of {} needs {} bytes of data, it has {}", array.source,
                                array.shape_text(), file_dtype_name(array.dtype), bytes, data.size()));
  if (data.size() > std::size_t(bytes))
    throw FileError(fmt::format("{}: has {} bytes after its data; shape {} of {} needs {} bytes", array.source,
                                data.size() - std::size_t(bytes), array.shape_text(), file_dtype_name(array.dtype),
                                bytes));
  array.data = *header.fortran_order ? c_order(data, array.shape, bytes_of(array.dtype))
                                     : std::vector<std::byte>(data.begin(), data.end());
  return array;
}

Array load_npy(const fs::path& path) { return parse_npy(path.string(), read_file(path)); }

std::vector<Array> load_npz(const fs::path& path, const std::vector<std::string>& names) {
  const std::string file_name = path.string();
  require_regular(path);
  int code = 0;
  const std::unique_ptr<zip_t, decltype(&zip_discard)> archive(zip_open(file_name.c_str(), ZIP_RDONLY, &code),
                                                               zip_discard);
  if (!archive) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    const std::string why = zip_error_strerror(&error);
    zip_error_fini(&error);
    throw FileError(fmt::format("{}: cannot be opened as a .npz file: {}", file_name, why));
  }
  std::vector<Array> arrays;
  for (const std::string& name : names) {
    const std::string member = name + ".npy";
    zip_stat_t stat;
    if (zip_stat(archive.get(), member.c_str(), 0, &stat) != 0) {
      std::string found;
      for (zip_int64_t i = 0; i < zip_get_num_entries(archive.get(), 0); ++i)
        found += (i ? ", " : "") + std::string(zip_get_name(archive.get(), zip_uint64_t(i), 0));
      throw FileError(
          fmt::format("{}: has no array {}; it holds: {}", file_name, name, found.empty() ? "nothing" : found));
    }
    const std::string source = fmt::format("{}: {}", file_name, name);
    const std::unique_ptr<zip_file_t, decltype(&zip_fclose)> entry(zip_fopen(archive.get(), member.c_str(), 0),
                                                                   zip_fclose);
    if (!entry) throw FileError(fmt::format("{}: cannot be read: {}", source, zip_strerror(archive.get())));
    std::vector<std::byte> bytes;  // grows with what is read: the size the entry says may be anything
    for (;;) {                     // up to the end, which is where libzip compares the checksum
      const std::size_t before = bytes.size();
      bytes.resize(before + chunk);
      const zip_int64_t got = zip_fread(entry.get(), bytes.data() + before, chunk);
      if (got < 0) throw FileError(fmt::format("{}: cannot be read: {}", source, zip_file_strerror(entry.get())));
      bytes.resize(before + std::size_t(got));
      if (got == 0) break;
      if (bytes.size() > stat.size)
        throw FileError(fmt::format("{}: is longer than the {} bytes its entry says", source, stat.size));
    }
    if (bytes.size() < stat.size)
      throw FileError(
          fmt::format("{}: is truncated: its entry says {} bytes, it has {}", source, stat.size, bytes.size()));
    arrays.push_back(parse_npy(source, bytes));
  }
  return arrays;
}

std::vector<std::byte> convert(const Array& array, fa3_dtype dtype) {
  return with_dtype(dtype, [&]<class To>(To) {
    return with_file_dtype(array.dtype, [&]<class From>(From) {
      if (std::is_same_v<From, To>) return array.data;
      const std::size_t count = array.data.size() / sizeof(From);
      std::vector<std::byte> result(count * sizeof(To));
      for (std::size_t i = 0; i < count; ++i) {
        const double exact = load_element<From>(array.data.data() + i * sizeof(From));
        const To x = from_float<To>(float(exact));
        if (std::isfinite(exact) && !std::isfinite(to_float(x)))
          throw FileError(fmt::format("{}: holds {}, which is beyond the range of {}; choose another --dtype",
                                      array.source, exact, dtype_name(dtype)));
        std::memcpy(result.data() + i * sizeof(To), &x, sizeof(To));
      }
      return result;
    });
  });
}

void check_writable(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw FileError(fmt::format("{}: cannot be written: it exists and is not a regular file", path.string()));
  if (fs::exists(status) && access(path.c_str(), W_OK) != 0)
    throw FileError(fmt::format("{}: cannot be written: {}", path.string(), system_error()));
  const fs::path target = resolve(path);
  close(create_temporary(path, target));
  remove_temporary(temporary_name(target));
}

bool same_output(const fs::path& a, const fs::path& b) {
  // Why absolute first: a relative path of which nothing exists stays relative.
  const auto canonical = [](const fs::path& path) { return fs::weakly_canonical(fs::absolute(resolve(path))); };
  return canonical(a) == canonical(b);
}

void remove_temporaries_on_signals() {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGXFSZ}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_DFL) continue;
    action.sa_handler = remove_temporaries;
    sigaction(signal, &action, nullptr);
  }
}

NpyFile::NpyFile(fs::path path, fa3_dtype dtype, const std::vector<int64_t>& shape, std::span<const std::byte> data)
    : path_(std::move(path)), target_(resolve(path_)), temporary_(temporary_name(target_)) {
  std::string dict =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", dtype == FA3_F16 ? "<f2" : "<f4",
                  fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  constexpr std::size_t prefix = 10, alignment = 64;
  dict.append(alignment - 1 - (prefix + dict.size()) % alignment, ' ');
  dict += '\n';
  std::string header = "\x93NUMPY\x01";
  header += '\0';
  header += char(dict.size() & 0xff);
  header += char(dict.size() >> 8);
  header += dict;

  const int file = create_temporary(path_, target_);
  bool written = write_all(file, std::as_bytes(std::span(header))) && write_all(file, data);
  std::string why = written ? "" : system_error();
  if (close(file) != 0 && written) {
    written = false;
    why = system_error();
  }
  if (!written) {
    remove_temporary(temporary_);
    throw FileError(fmt::format("{}: cannot be written: {}", path_.string(), why));
  }
}

NpyFile::~NpyFile() {
  if (!temporary_.empty()) remove_temporary(temporary_);
}

void NpyFile::commit() {
  if (rename(temporary_.c_str(), target_.c_str()) != 0)
    throw FileError(fmt::format("{}: cannot be written: {}", path_.string(), system_error()));
  forget(temporary_);
  temporary_.clear();
}

}  // namespace fa3::cli
