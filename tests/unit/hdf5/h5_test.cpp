// The HDF5 layer: types that other readers understand, and files that are not what they claim to be.
#include "stage/hdf5/h5.h"

#include <bit>
#include <cmath>
#include <functional>

#include "stage/hdf5/h5_scan.h"
#include "support/weights_support.h"

namespace lfm2 {
namespace {

using test::expect_error;
using test::TemporaryFolder;

// Writes `bytes` at this offset of the file.
void put(const std::filesystem::path& path, uint64_t offset, const std::string& bytes) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file << bytes;
  ASSERT_TRUE(file.good());
}

// Expects every 16-bit pattern, stored raw, to be the number that the library reads with its own conversion.
void expect_library_agrees(DType dtype) {
  const TemporaryFolder folder;
  uint64_t offset = 0;
  {
    h5::File file = h5::File::create(folder / "f.h5");
    offset = file.create_dataset("x", dtype, {65536});
    file.close();
  }
  std::string raw;
  for (uint32_t bits = 0; bits < 65536; ++bits) raw += test::little_endian(bits, 2);
  put(folder / "f.h5", offset, raw);
  std::vector<float> ours(65536), theirs(65536);
  convert(dtype, raw.data(), DType::kF32, ours.data(), ours.size());
  const CheckedFile scanned(folder / "f.h5");
  EXPECT_EQ(h5::scan(scanned).datasets.at("x").type.dtype, dtype);
  const h5::File file = h5::File::open(scanned);
  file.read_rows("x", 0, 65536, H5T_NATIVE_FLOAT, theirs.data());
  for (size_t i = 0; i < ours.size(); ++i) {
    if (std::isnan(ours[i]))
      EXPECT_TRUE(std::isnan(theirs[i])) << i;
    else
      EXPECT_EQ(std::bit_cast<uint32_t>(ours[i]), std::bit_cast<uint32_t>(theirs[i])) << i;
  }
}

TEST(H5Test, Bf16IsANumberForTheLibrary) { expect_library_agrees(DType::kBf16); }
TEST(H5Test, Fp16IsANumberForTheLibrary) { expect_library_agrees(DType::kF16); }

TEST(H5Test, DatasetsArePlainAndAligned) {
  const TemporaryFolder folder;
  h5::File file = h5::File::create(folder / "f.h5");
  const uint64_t small = file.create_dataset("small", DType::kBf16, {3, 1, 2});
  const uint64_t large = file.create_dataset("large", DType::kF32, {64, 64});
  file.close();
  EXPECT_EQ(large % 4096, 0u);
  const h5::Scan scan = h5::scan(CheckedFile(folder / "f.h5"));
  ASSERT_EQ(scan.datasets.size(), 2u);
  const h5::ScannedDataset& found = scan.datasets.at("small");
  EXPECT_EQ(found.dims, (std::vector<uint64_t>{3, 1, 2}));
  EXPECT_EQ(found.type.dtype, DType::kBf16);
  EXPECT_EQ(found.storage, h5::ScannedDataset::Storage::kContiguous);
  EXPECT_EQ(found.offset, small);
  EXPECT_EQ(found.bytes, 12u);
  EXPECT_EQ(scan.datasets.at("large").offset, large);
}

TEST(H5Test, AttributesComeBackAndCanBeReplaced) {
  const TemporaryFolder folder;
  {
    h5::File file = h5::File::create(folder / "f.h5");
    file.create_dataset("x", DType::kF32, {4});
    for (const char* object : {"/", "x"}) {
      file.set_attribute("text", "é first", object);
      file.set_attribute("text", "è other", object);  // of the same length
      file.set_attribute("long", "short", object);
      file.set_attribute("long", std::string(200000, 'y'), object);  // larger than an object header
      file.set_attribute("number", int64_t{-5}, object);
      file.set_attribute("empty", "", object);
    }
    file.close();
  }
  const h5::Scan scan = h5::scan(CheckedFile(folder / "f.h5"));
  for (const h5::ScannedAttributes& found : {scan.attributes, scan.datasets.at("x").attributes}) {
    EXPECT_EQ(h5::text_of(found, "text", "f"), "è other");
    EXPECT_EQ(h5::text_of(found, "long", "f"), std::string(200000, 'y'));
    EXPECT_EQ(h5::integer_of(found, "number", "f"), -5);
    EXPECT_EQ(h5::text_of(found, "empty", "f"), "");
    EXPECT_EQ(found.size(), 4u);
    for (const char* name : {"absent", "number"})
      expect_error([&] { h5::text_of(found, name, "f"); }, ExitCode::kData, {"f: ", name});
    expect_error([&] { h5::integer_of(found, "text", "f"); }, ExitCode::kData, {"f: ", "text"});
  }
}

// An attribute with more bytes than one text: reading it as one text would overrun.
TEST(H5Test, RefusesAListOfTextsAndAHugeText) {
  const TemporaryFolder folder;
  {
    h5::File file = h5::File::create(folder / "f.h5");
    const h5::Id type{H5Tcopy(H5T_C_S1), H5Tclose};
    H5Tset_size(type.get(), 33);
    const hsize_t count = 1000;
    const h5::Id space{H5Screate_simple(1, &count, nullptr), H5Sclose};
    const h5::Id list{H5Acreate2(file.id(), "list", type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
    const std::string texts(33 * 1000, 'a');
    ASSERT_GE(H5Awrite(list.get(), type.get(), texts.data()), 0);
    file.set_attribute("huge", std::string((1 << 20) + 1, 'h'));
    file.close();
  }
  const h5::Scan scan = h5::scan(CheckedFile(folder / "f.h5"));
  expect_error([&] { h5::text_of(scan.attributes, "list", "f"); }, ExitCode::kData, {"f: ", "list"});
  expect_error([&] { h5::text_of(scan.attributes, "huge", "f"); }, ExitCode::kData, {"f: ", "huge", "at most"});
}

TEST(H5Test, KnowsDatasetsThatAreNotPlain) {
  const TemporaryFolder folder;
  {
    h5::File file = h5::File::create(folder / "f.h5");
    const hsize_t dims[1] = {1024};
    const h5::Id space{H5Screate_simple(1, dims, nullptr), H5Sclose};
    const auto add = [&](const char* name, hid_t type, const std::function<void(hid_t)>& set) {
      const h5::Id list{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
      H5Pset_alloc_time(list.get(), H5D_ALLOC_TIME_EARLY);
      set(list.get());
      const h5::Id dataset{H5Dcreate2(file.id(), name, type, space.get(), H5P_DEFAULT, list.get(), H5P_DEFAULT),
                           H5Dclose};
      ASSERT_TRUE(dataset) << name;
    };
    add("chunked", H5T_IEEE_F32LE, [&](hid_t list) { H5Pset_chunk(list, 1, dims); });
    add("compact", H5T_IEEE_F32LE, [](hid_t list) { H5Pset_layout(list, H5D_COMPACT); });
    add("double", H5T_IEEE_F64LE, [](hid_t) {});
    add("big-endian", H5T_IEEE_F32BE, [](hid_t) {});
    file.close();
  }
  const h5::Scan scan = h5::scan(CheckedFile(folder / "f.h5"));
  using Storage = h5::ScannedDataset::Storage;
  EXPECT_EQ(scan.datasets.at("chunked").storage, Storage::kChunked);
  EXPECT_EQ(scan.datasets.at("compact").storage, Storage::kCompact);
  EXPECT_FALSE(scan.datasets.at("double").type.dtype);
  EXPECT_EQ(scan.datasets.at("double").type.text(), "64-bit float");
  EXPECT_FALSE(scan.datasets.at("big-endian").type.dtype);
}

// File::open() opens the file that was scanned, even when its name leads to another file by then.
TEST(H5Test, OpensTheFileThatWasScanned) {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, int64_t value) {
    h5::File file = h5::File::create(folder / name);
    file.write_i64("x", {value});
    file.close();
  };
  write("f.h5", 1);
  write("other.h5", 2);
  const CheckedFile scanned(folder / "f.h5");
  std::filesystem::rename(folder / "f.h5", folder / "aside.h5");
  std::filesystem::rename(folder / "other.h5", folder / "f.h5");
  int64_t value = 0;
  const h5::File file = h5::File::open(scanned);
  file.read_rows("x", 0, 1, H5T_NATIVE_INT64, &value);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(file.path(), folder / "f.h5");
  expect_error([&] { file.read_rows("y", 0, 1, H5T_NATIVE_INT64, &value); }, ExitCode::kData, {"/f.h5", "dataset y"});
}

TEST(H5Test, RefusesWhatIsNoHdf5) {
  const TemporaryFolder folder;
  test::write_bytes(folder / "text.h5", "not HDF5 at all");
  test::write_bytes(folder / "empty.h5", "");
  for (const char* name : {"text.h5", "empty.h5"})
    expect_error([&] { h5::File::open(CheckedFile(folder / name)); }, ExitCode::kData, {name, "HDF5"});
  expect_error([&] { h5::File::create(folder / "absent/f.h5"); }, ExitCode::kCantCreate, {"absent/f.h5"});
}

TEST(H5Test, EqualContentGivesEqualBytes) {
  const TemporaryFolder folder;
  for (const char* name : {"a.h5", "b.h5"}) {
    h5::File file = h5::File::create(folder / name);
    for (int i = 0; i < 100; ++i) {
      const std::string set = "set" + std::to_string(i);
      file.create_dataset(set, DType::kBf16, {static_cast<uint64_t>(i + 1), 7});
      file.set_attribute("a", "b", set);
    }
    file.close();
  }
  EXPECT_EQ(test::read_bytes(folder / "a.h5"), test::read_bytes(folder / "b.h5"));
}

}  // namespace
}  // namespace lfm2
