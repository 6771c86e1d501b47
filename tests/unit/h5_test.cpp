// The HDF5 layer: types that other readers understand, and files that are not what they seem.
#include "stage/h5.h"

#include <bit>
#include <cmath>

#include "weights_support.h"

namespace lfm2 {
namespace {

using test::expect_error;
using test::TemporaryFolder;

// Writes `bytes` to the place that the dataset has in the file.
void put(const std::filesystem::path& path, uint64_t offset, const std::string& bytes) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file << bytes;
  ASSERT_TRUE(file.good());
}

// Every 16-bit pattern stored raw must be the number that the library reads through its own conversion.
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
  const h5::File file = h5::File::open(folder / "f.h5");
  EXPECT_EQ(file.info("x").dtype, dtype);
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
  const h5::File again = h5::File::open(folder / "f.h5");
  EXPECT_EQ(again.names(), (std::vector<std::string>{"large", "small"}));
  const h5::DatasetInfo info = again.info("small");
  EXPECT_EQ(info.dims, (std::vector<uint64_t>{3, 1, 2}));
  EXPECT_EQ(info.dtype, DType::kBf16);
  EXPECT_TRUE(info.plain);
  EXPECT_EQ(info.offset, small);
  EXPECT_EQ(info.bytes, 12u);
  EXPECT_EQ(again.info("large").offset, large);
}

TEST(H5Test, AttributesComeBackAndCanBeReplaced) {
  const TemporaryFolder folder;
  {
    h5::File file = h5::File::create(folder / "f.h5");
    file.create_dataset("x", DType::kF32, {4});
    for (const char* object : {"/", "x"}) {
      file.set_attribute("text", "é first", object);
      file.set_attribute("text", "è other", object);  // of equal length
      file.set_attribute("long", "short", object);
      file.set_attribute("long", std::string(200000, 'y'), object);  // more than fits into an object header
      file.set_attribute("number", int64_t{-5}, object);
      file.set_attribute("empty", "", object);
    }
    file.close();
  }
  const h5::File file = h5::File::open(folder / "f.h5");
  for (const char* object : {"/", "x"}) {
    EXPECT_EQ(file.text_attribute("text", object), "è other");
    EXPECT_EQ(file.text_attribute("long", object), std::string(200000, 'y'));
    EXPECT_EQ(file.int_attribute("number", object), -5);
    EXPECT_EQ(file.text_attribute("empty", object), "");
    EXPECT_TRUE(file.has_attribute("text", object));
    EXPECT_FALSE(file.has_attribute("absent", object));
    expect_error([&] { file.text_attribute("absent", object); }, ExitCode::kData, {"f.h5", "absent"});
    expect_error([&] { file.text_attribute("number", object); }, ExitCode::kData, {"f.h5", "number"});
    expect_error([&] { file.int_attribute("text", object); }, ExitCode::kData, {"f.h5", "text"});
  }
}

// More bytes than one text: reading it as one would run over.
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
  const h5::File file = h5::File::open(folder / "f.h5");
  expect_error([&] { file.text_attribute("list"); }, ExitCode::kData, {"f.h5", "list"});
  expect_error([&] { file.text_attribute("huge"); }, ExitCode::kData, {"f.h5", "huge", "at most"});
}

TEST(H5Test, KnowsDatasetsThatAreNotPlain) {
  const TemporaryFolder folder;
  {
    h5::File file = h5::File::create(folder / "f.h5");
    const hsize_t dims[1] = {1024};
    const h5::Id space{H5Screate_simple(1, dims, nullptr), H5Sclose};
    const h5::Id chunked{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
    H5Pset_chunk(chunked.get(), 1, dims);
    const h5::Id external{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
    H5Pset_external(external.get(), "/etc/hostname", 0, 4096);
    const h5::Id compact{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
    H5Pset_layout(compact.get(), H5D_COMPACT);
    for (const auto& [name, list] :
         {std::pair("chunked", chunked.get()), std::pair("external", external.get()),
          std::pair("compact", compact.get()), std::pair("late", static_cast<hid_t>(H5P_DEFAULT))}) {
      const h5::Id set{H5Dcreate2(file.id(), name, H5T_IEEE_F32LE, space.get(), H5P_DEFAULT, list, H5P_DEFAULT),
                       H5Dclose};
      ASSERT_TRUE(set) << name;
    }
    const h5::Id wide{
        H5Dcreate2(file.id(), "double", H5T_IEEE_F64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Dclose};
    const h5::Id big{
        H5Dcreate2(file.id(), "big-endian", H5T_IEEE_F32BE, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
        H5Dclose};
    file.close();
  }
  const h5::File file = h5::File::open(folder / "f.h5");
  for (const char* name : {"chunked", "external", "compact", "late"}) EXPECT_FALSE(file.info(name).plain) << name;
  EXPECT_FALSE(file.info("double").dtype);
  EXPECT_EQ(file.info("double").stored_type, "64-bit float");
  EXPECT_FALSE(file.info("big-endian").dtype);
}

TEST(H5Test, RefusesLinks) {
  const TemporaryFolder folder;
  for (const bool external : {false, true}) {
    {
      h5::File file = h5::File::create(folder / "f.h5");
      file.create_dataset("x", DType::kF32, {4});
      if (external)
        H5Lcreate_external("/etc/passwd", "/x", file.id(), "alias", H5P_DEFAULT, H5P_DEFAULT);
      else
        H5Lcreate_soft("/x", file.id(), "alias", H5P_DEFAULT, H5P_DEFAULT);
      file.close();
    }
    const h5::File file = h5::File::open(folder / "f.h5");
    expect_error([&] { file.names(); }, ExitCode::kData, {"f.h5", "alias", "link"});
  }
}

TEST(H5Test, RefusesWhatIsNoHdf5) {
  const TemporaryFolder folder;
  test::write_bytes(folder / "text.h5", "not HDF5 at all");
  test::write_bytes(folder / "empty.h5", "");
  for (const char* name : {"text.h5", "empty.h5"})
    expect_error([&] { h5::File::open(folder / name); }, ExitCode::kData, {name, "HDF5"});
  expect_error([&] { h5::File::open(folder / "absent.h5"); }, ExitCode::kNoInput, {"absent.h5"});
  expect_error([&] { h5::File::open(folder.path()); }, ExitCode::kData, {folder.path().string()});
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
