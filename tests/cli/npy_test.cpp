#include "npy.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <limits>

#include "files.hpp"

namespace fa3::cli {
namespace {

Array parse(const std::string& bytes) { return parse_npy("x.npy", std::as_bytes(std::span(bytes))); }

std::string error_of(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<float> floats(const Array& array) {
  const std::vector<std::byte> bytes = convert(array, FA3_F32);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

const std::vector<float> six = {1, 2, 3, 4, 5, 6};

TEST(ParseNpy, ReadsEveryVersion) {
  for (const char version : {1, 2, 3}) {
    const Array array = parse(npy_bytes(npy_dict("<f4", "(2, 3)"), raw(six), version));
    EXPECT_EQ(array.shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(array.dtype, FileDtype::f32);
    EXPECT_EQ(floats(array), six);
  }
  EXPECT_EQ(error_of(npy_bytes(npy_dict("<f4", "(2, 3)"), raw(six), 4)),
            "x.npy: has .npy format version 4; versions 1 to 3 are read");
}

TEST(ParseNpy, ReadsEveryElementType) {
  EXPECT_EQ(floats(parse(npy_bytes(npy_dict("<f2", "(2,)"), raw<std::uint16_t>({0x3c00, 0xc100})))),
            (std::vector<float>{1, -2.5}));
  EXPECT_EQ(floats(parse(npy_bytes(npy_dict("<f8", "(2,)"), raw<double>({1, -2.5})))), (std::vector<float>{1, -2.5}));
  for (const char* bf16 : {"bfloat16", "<V2", "|V2"})
    EXPECT_EQ(floats(parse(npy_bytes(npy_dict(bf16, "(2,)"), raw<std::uint16_t>({0x3f80, 0xc020})))),
              (std::vector<float>{1, -2.5}));
}

TEST(ParseNpy, RefusesOtherElementTypes) {
  for (const char* descr : {"<i8", "|b1", "<c8", "<u2", "<f16", "float32"})
    EXPECT_EQ(error_of(npy_bytes(npy_dict(descr, "(2,)"), "")),
              std::string("x.npy: element type is ") + descr +
                  "; allowed are <f2, <f4, <f8 and, as bf16, bfloat16 or a 2-byte void (V2)");
  EXPECT_NE(error_of(npy_bytes(npy_dict(">f4", "(2,)"), "")).find("which is big-endian"), std::string::npos);
  EXPECT_NE(
      error_of(npy_bytes("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", "")).find("structured"),
      std::string::npos);
}

TEST(ParseNpy, TurnsFortranOrderIntoCOrder) {
  const Array matrix = parse(npy_bytes(npy_dict("<f4", "(2, 3)", true), raw<float>({1, 4, 2, 5, 3, 6})));
  EXPECT_EQ(floats(matrix), six);
  std::vector<float> c_order(2 * 3 * 4), fortran(2 * 3 * 4);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 4; ++k)
        c_order[(i * 3 + j) * 4 + k] = fortran[(k * 3 + j) * 2 + i] = float(100 * i + 10 * j + k);
  EXPECT_EQ(floats(parse(npy_bytes(npy_dict("<f4", "(2, 3, 4)", true), raw(fortran)))), c_order);
}

TEST(ParseNpy, ReadsScalarsAndEmptyArrays) {
  EXPECT_EQ(floats(parse(npy_bytes(npy_dict("<f4", "()"), raw<float>({7})))), std::vector<float>{7});
  const Array empty = parse(npy_bytes(npy_dict("<f4", "(2, 0, 3)", true), ""));
  EXPECT_EQ(empty.elements(), 0);
  EXPECT_EQ(empty.shape_text(), "[2, 0, 3]");
}

TEST(ParseNpy, RefusesWhatIsCutOff) {
  const std::string whole = npy_bytes(npy_dict("<f4", "(2, 3)"), raw(six));
  EXPECT_EQ(error_of(""), "x.npy: is empty (0 bytes); wanted is a .npy file");
  EXPECT_EQ(error_of(whole.substr(0, whole.size() - 1)),
            "x.npy: is truncated: shape [2, 3] of f32 needs 24 bytes of data, it has 23");
  const std::size_t header_end = whole.size() - 24;
  for (std::size_t length = 6; length < header_end; ++length)
    EXPECT_EQ(error_of(whole.substr(0, length)), "x.npy: is truncated within its .npy header") << length;
}

TEST(ParseNpy, RefusesTrailingBytes) {
  EXPECT_EQ(error_of(npy_bytes(npy_dict("<f4", "(2, 3)"), raw(six) + "xy")),
            "x.npy: has 2 bytes after its data; shape [2, 3] of f32 needs 24 bytes");
}

TEST(ParseNpy, RefusesOtherFiles) {
  EXPECT_EQ(error_of("PK\x03\x04 and so on"), "x.npy: is not a .npy file (its first bytes are not \\x93NUMPY)");
}

TEST(ParseNpy, RefusesMalformedHeaders) {
  for (const char* dict :
       {"", "{", "{}", "garbage", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", "{'descr': '<f4, 'fortran_order': False}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}"})
    EXPECT_NE(error_of(npy_bytes(dict, "")).find("its .npy header is malformed"), std::string::npos) << dict;
  EXPECT_NE(error_of(npy_bytes(npy_dict("<f4", "(4000000000, 4000000000)"), "")).find("more than any memory holds"),
            std::string::npos);
}

TEST(ParseNpy, RefusesWhatFollowsTheDict) {
  const std::string dict = npy_dict("<f4", "(2, 3)"), nul(1, '\0');
  EXPECT_EQ(floats(parse(npy_bytes(dict + "   ", raw(six)))), six);
  for (const std::string& more : {nul, nul + "garbage", "  " + nul, std::string("}"), dict})
    EXPECT_NE(error_of(npy_bytes(dict + more, raw(six))).find("its .npy header is malformed"), std::string::npos)
        << more;
}

TEST(Convert, RefusesFiniteValuesThatBecomeInfinite) {
  const Array array = parse(npy_bytes(npy_dict("<f4", "(2,)"), raw<float>({1, 7e4f})));
  EXPECT_NO_THROW(convert(array, FA3_BF16));
  EXPECT_THROW(convert(array, FA3_F16), FileError);
  const Array infinite =
      parse(npy_bytes(npy_dict("<f8", "(2,)"), raw<double>({std::numeric_limits<double>::infinity(), NAN})));
  EXPECT_NO_THROW(convert(infinite, FA3_F16));
}

TEST(LoadNpz, ReadsStoredAndDeflated) {
  const TemporaryDirectory directory;
  const std::string one = npy_bytes(npy_dict("<f4", "(2, 3)"), raw(six)),
                    two = npy_bytes(npy_dict("<f4", "(1,)"), raw<float>({9}));
  for (const int compression : {ZIP_CM_STORE, ZIP_CM_DEFLATE}) {
    write_zip(directory.file("x.npz"), {{"k.npy", two}, {"q.npy", one}}, compression);
    const std::vector<Array> arrays = load_npz(directory.file("x.npz"), {"q", "k"});
    EXPECT_EQ(floats(arrays.at(0)), six);
    EXPECT_EQ(floats(arrays.at(1)), std::vector<float>{9});
  }
}

TEST(LoadNpz, NamesWhatIsMissing) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("x.npz");
  write_zip(path, {{"q.npy", npy_bytes(npy_dict("<f4", "(1,)"), raw<float>({9}))}}, ZIP_CM_STORE);
  try {
    load_npz(path, {"q", "k"});
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(error.what(), path + ": has no array k; it holds: q.npy");
  }
}

TEST(LoadNpz, RefusesDamage) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("x.npz");
  EXPECT_THROW(load_npz(path, {"q"}), FileError);  // not there
  write_file(path, "no archive");
  EXPECT_THROW(load_npz(path, {"q"}), FileError);
  write_zip(path, {{"q.npy", npy_bytes(npy_dict("<f4", "(2, 3)"), raw(six))}}, ZIP_CM_STORE);
  std::string bytes = read_file(path);
  bytes[bytes.find(raw(six))] ^= 1;  // the checksum no longer fits
  write_file(path, bytes);
  EXPECT_THROW(load_npz(path, {"q"}), FileError);
}

TEST(LoadNpz, RefusesASizeThatIsNotThere) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("x.npz");
  write_zip(path, {{"q.npy", npy_bytes(npy_dict("<f4", "(2, 3)"), raw(six))}}, ZIP_CM_DEFLATE);
  // The entry's uncompressed size becomes 2^50, which is held by a zip64 field.
  std::string bytes = read_file(path);
  const std::size_t entry = bytes.find("PK\x01\x02"), end = bytes.find("PK\x05\x06");
  ASSERT_TRUE(entry != std::string::npos && end != std::string::npos);
  ASSERT_EQ(bytes[entry + 30], 0);  // no extra fields yet
  const std::string field = raw<std::uint16_t>({1, 8}) + raw<std::uint64_t>({std::uint64_t(1) << 50});
  bytes[end + 12] = char(bytes[end + 12] + int(field.size()));  // bytes of the directory
  bytes[entry + 30] = char(field.size());
  bytes.replace(entry + 24, 4, 4, '\xff');
  bytes.insert(entry + 46 + std::strlen("q.npy"), field);
  write_file(path, bytes);
  try {
    load_npz(path, {"q"});
    FAIL();
  } catch (const FileError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with(path + ": q: ")) << error.what();
  }
}

TEST(NpyFile, IsReadBack) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("o.npy");
  for (const auto& shape : {std::vector<std::int64_t>{6}, {2, 3}, {1, 2, 3, 1}}) {
    NpyFile file(path, FA3_F32, shape, std::as_bytes(std::span(six)));
    file.commit();
    const Array array = load_npy(path);
    EXPECT_EQ(array.shape, shape);
    EXPECT_EQ(floats(array), six);
  }
  EXPECT_EQ(directory.contents(), std::vector<std::string>{"o.npy"});
  EXPECT_EQ(read_file(path).find('\n') % 64, 63u);  // the data are aligned
}

TEST(NpyFile, LeavesNothingBehindUnlessCommitted) {
  const TemporaryDirectory directory;
  { const NpyFile file(directory.file("o.npy"), FA3_F32, {6}, std::as_bytes(std::span(six))); }
  EXPECT_TRUE(directory.contents().empty());
}

TEST(NpyFile, LeavesNothingBehindOnSignals) {
  const TemporaryDirectory directory;
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGXFSZ}) {
    EXPECT_EXIT(
        {
          remove_temporaries_on_signals();
          const NpyFile o(directory.file("o.npy"), FA3_F32, {6}, std::as_bytes(std::span(six)));
          const NpyFile lse(directory.file("lse.npy"), FA3_F32, {6}, std::as_bytes(std::span(six)));
          if (directory.contents().size() == 2) std::raise(signal);
        },
        testing::KilledBySignal(signal), "");
    EXPECT_TRUE(directory.contents().empty()) << signal;
  }
}

TEST(CheckWritable, RefusesWhatCannotBeWritten) {
  const TemporaryDirectory directory;
  EXPECT_NO_THROW(check_writable(directory.file("o.npy")));
  EXPECT_TRUE(directory.contents().empty());
  EXPECT_THROW(check_writable(directory.file("missing/o.npy")), FileError);
  EXPECT_THROW(check_writable(directory.file("")), FileError);  // a directory
  ASSERT_EQ(mkfifo(directory.file("pipe").c_str(), 0600), 0);
  EXPECT_THROW(check_writable(directory.file("pipe")), FileError);
}

}  // namespace
}  // namespace fa3::cli
