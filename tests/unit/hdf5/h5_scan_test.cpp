// The scan of HDF5 files agrees with the library about the files that it accepts.
#include "stage/hdf5/h5_scan.h"

#include "support/h5_scan_support.h"

namespace lfm2 {
namespace {

using h5::Id;
using h5::ScannedDataset;
using test::add_dataset;
using test::add_text;
using test::expect_error;
using test::H5Format;
using test::H5ScanTest;
using test::kH5Formats;
using test::metadata_checksum;

// Jenkins' own examples of lookup3 with seed 0.
TEST_F(H5ScanTest, ChecksumIsLookup3) {
  EXPECT_EQ(metadata_checksum(""), 0xdeadbeefu);
  EXPECT_EQ(metadata_checksum("Four score and seven years ago"), 0x17770551u);
}

void fill_with_datasets(hid_t file, int count) {
  for (int i = 0; i < count; ++i) {
    const std::string name = fmt::format("dataset.{}.{}", i, std::string(static_cast<size_t>(i % 50), 'n'));
    const Id dataset = add_dataset(file, name, H5T_IEEE_F32LE, {static_cast<hsize_t>(i + 1), 3});
    add_text(dataset.get(), "text", name);
    if (i == 7)
      for (int more = 0; more < 200; ++more) add_text(dataset.get(), fmt::format("a{}", more), name);
    const std::vector<float> values(static_cast<size_t>(i + 1) * 3, static_cast<float>(i));
    H5Dwrite(dataset.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  }
}

void expect_as_in_library(const ScannedDataset& dataset, const std::string& name, const h5::File& library) {
  const Id found{H5Dopen2(library.id(), name.c_str(), H5P_DEFAULT), H5Dclose};
  const Id space{H5Dget_space(found.get()), H5Sclose};
  hsize_t dims[2] = {};
  ASSERT_EQ(H5Sget_simple_extent_ndims(space.get()), 2) << name;
  H5Sget_simple_extent_dims(space.get(), dims, nullptr);
  ASSERT_EQ(dataset.dims, std::vector<uint64_t>(dims, dims + 2)) << name;
  ASSERT_EQ(dataset.type.dtype, DType::kF32) << name;
  ASSERT_EQ(dataset.storage, ScannedDataset::Storage::kContiguous) << name;
  ASSERT_EQ(dataset.offset, H5Dget_offset(found.get())) << name;
  ASSERT_EQ(dataset.bytes, H5Dget_storage_size(found.get())) << name;
  ASSERT_EQ(h5::text_of(dataset.attributes, "text", name), name);
  ASSERT_EQ(dataset.attributes.size(), name.starts_with("dataset.7.") ? 201u : 1u);
}

// So many objects and attributes that every form of storage appears: in headers, in one block, below an index.
TEST_F(H5ScanTest, AgreesWithTheLibrary) {
  const std::string large(30000, 'x');
  for (const H5Format& format : kH5Formats) {
    const bool large_fits = format.low != H5F_LIBVER_EARLIEST;
    for (const int count : {0, 1, 9, 400, 3000}) {
      SCOPED_TRACE(std::string(format.name) + " " + std::to_string(count));
      const auto fill = [&](hid_t file) {
        fill_with_datasets(file, count);
        if (large_fits) add_text(file, "large", large);
      };
      write(format.low, fill, count == 400);
      const CheckedFile raw(path());
      const h5::Scan scan = h5::scan(raw);
      const h5::File library = h5::File::open(raw);
      ASSERT_EQ(scan.datasets.size(), static_cast<size_t>(count));
      EXPECT_TRUE(scan.complete);
      for (const auto& [name, dataset] : scan.datasets)
        ASSERT_NO_FATAL_FAILURE(expect_as_in_library(dataset, name, library));
      if (large_fits) {
        EXPECT_EQ(h5::text_of(scan.attributes, "large", "f"), large);
      }
    }
  }
}

TEST_F(H5ScanTest, ReadsIntegersOfEverySize) {
  write(H5F_LIBVER_V110, [](hid_t file) {
    const Id space{H5Screate(H5S_SCALAR), H5Sclose};
    const int64_t value = -5;
    for (const auto& [name, type] : {std::pair("i8", H5T_STD_I8LE), std::pair("i64", H5T_STD_I64LE),
                                     std::pair("u8", H5T_STD_U8LE), std::pair("big", H5T_STD_I64BE)}) {
      const Id attribute{H5Acreate2(file, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
      H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value);
    }
    add_text(file, "text", "t");
  });
  const h5::Scan found = scan();
  EXPECT_EQ(h5::integer_of(found.attributes, "i8", "f"), -5);
  EXPECT_EQ(h5::integer_of(found.attributes, "i64", "f"), -5);
  EXPECT_EQ(h5::integer_of(found.attributes, "u8", "f"), 0);
  for (const char* name : {"big", "text", "absent"})
    expect_error([&] { h5::integer_of(found.attributes, name, "f"); }, ExitCode::kData, {"f: ", name});
  expect_error([&] { h5::text_of(found.attributes, "i8", "f"); }, ExitCode::kData, {"f: ", "i8", "text"});
}

// One chunk, a row of chunks, and rows that may grow in one direction or in two: each has another form of index.
void fill_with_chunks(hid_t file, bool filtered) {
  const auto add = [&](const char* name, hsize_t chunk_rows, std::vector<hsize_t> largest, H5D_alloc_time_t when) {
    const hsize_t chunk[2] = {chunk_rows, 2};
    const int32_t values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const Id list = test::properties([&](hid_t creation) {
      H5Pset_chunk(creation, 2, chunk);
      H5Pset_alloc_time(creation, when);
      if (filtered) H5Pset_deflate(creation, 1);
    });
    const Id space = test::simple_space({4, 2}, largest.data());
    const Id dataset = add_dataset(file, name, H5T_STD_I32LE, space.get(), list.get());
    ASSERT_GE(H5Dwrite(dataset.get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
  };
  add("one", 4, {4, 2}, H5D_ALLOC_TIME_LATE);
  add("row", 1, {4, 2}, H5D_ALLOC_TIME_LATE);
  add("implicit", 1, {4, 2}, H5D_ALLOC_TIME_EARLY);
  add("grows", 1, {H5S_UNLIMITED, 2}, H5D_ALLOC_TIME_LATE);
  add("grows twice", 1, {H5S_UNLIMITED, H5S_UNLIMITED}, H5D_ALLOC_TIME_LATE);
}

TEST_F(H5ScanTest, ChunksUnderEveryIndex) {
  for (const H5Format& format : kH5Formats) {
    for (const bool filtered : {false, true}) {
      SCOPED_TRACE(std::string(format.name) + (filtered ? " filtered" : ""));
      write(format.low, [&](hid_t file) { fill_with_chunks(file, filtered); });
      const h5::Scan found = scan();
      EXPECT_EQ(found.datasets.size(), 5u);
      for (const auto& [name, dataset] : found.datasets)
        EXPECT_EQ(dataset.storage, ScannedDataset::Storage::kChunked) << name;
    }
  }
}

using Class = h5::ScannedType::Class;

// The class of a dataset whose type is `like` with a change.
Class kind_of(const H5ScanTest& test, hid_t like, const test::Fill& change = {}) {
  test.write(H5F_LIBVER_V110, [&](hid_t file) {
    const Id type{H5Tcopy(like), H5Tclose};
    if (change) change(type.get());
    add_dataset(file, "x", type.get(), {4});
  });
  return test.scan().datasets.at("x").type.kind;
}

// Integers are read by their width alone, so those with unused bits must not count as integers.
TEST_F(H5ScanTest, IntegersWithUnusedBitsAreNone) {
  const auto kind_with = [&](size_t precision, size_t offset) {
    return kind_of(*this, H5T_STD_I32LE, [&](hid_t type) {
      H5Tset_precision(type, precision);
      H5Tset_offset(type, offset);
    });
  };
  EXPECT_EQ(kind_with(32, 0), Class::kInteger);
  EXPECT_EQ(kind_with(24, 0), Class::kOther);
  EXPECT_EQ(kind_with(24, 8), Class::kOther);
}

TEST_F(H5ScanTest, FloatsWithOtherFieldsAreNone) {
  for (const hid_t like : {H5T_IEEE_F32LE, H5T_IEEE_F64LE, H5T_IEEE_F32BE, H5T_IEEE_F64BE})
    EXPECT_EQ(kind_of(*this, like), Class::kFloat);
  EXPECT_EQ(kind_of(*this, h5::file_type(DType::kBf16).get()), Class::kFloat);
  EXPECT_EQ(kind_of(*this, H5T_IEEE_F32LE, [](hid_t type) { H5Tset_size(type, 16); }), Class::kOther);
  EXPECT_EQ(kind_of(*this, H5T_IEEE_F32LE, [](hid_t type) { H5Tset_fields(type, 31, 24, 7, 0, 23); }), Class::kOther);
}

}  // namespace
}  // namespace lfm2
