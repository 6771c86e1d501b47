// The scan of HDF5 files: it agrees with the library about files that it accepts, and refuses by name what could lead
// the library astray.
#include "stage/h5_scan.h"

#include <hdf5.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "stage/h5.h"
#include "weights_support.h"

namespace lfm2 {
namespace {

namespace fs = std::filesystem;
using h5::Id;
using h5::ScannedDataset;
using test::expect_error;
using test::TemporaryFolder;

uint32_t checksum(const std::string& text) { return h5::metadata_checksum(std::as_bytes(std::span(text))); }

// Jenkins' own examples of lookup3 with seed 0.
TEST(H5ScanTest, ChecksumIsLookup3) {
  EXPECT_EQ(checksum(""), 0xdeadbeefu);
  EXPECT_EQ(checksum("Four score and seven years ago"), 0x17770551u);
}

struct Format {
  const char* name;
  H5F_libver_t low;
};
const std::vector<Format> kFormats = {
    {"earliest", H5F_LIBVER_EARLIEST}, {"v18", H5F_LIBVER_V18}, {"v110", H5F_LIBVER_V110}};

Id create(const fs::path& path, H5F_libver_t low, bool by_order = false) {
  const Id access{H5Pcreate(H5P_FILE_ACCESS), H5Pclose}, creation{H5Pcreate(H5P_FILE_CREATE), H5Pclose};
  H5Pset_libver_bounds(access.get(), low, H5F_LIBVER_LATEST);
  if (by_order) H5Pset_link_creation_order(creation.get(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
  return {H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose};
}

Id add_dataset(hid_t file, const std::string& name, hid_t type, const std::vector<hsize_t>& dims,
               hid_t creation = H5P_DEFAULT) {
  const Id space{H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose};
  const Id early{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
  H5Pset_alloc_time(early.get(), H5D_ALLOC_TIME_EARLY);
  if (creation == H5P_DEFAULT) creation = early.get();
  Id dataset{H5Dcreate2(file, name.c_str(), type, space.get(), H5P_DEFAULT, creation, H5P_DEFAULT), H5Dclose};
  EXPECT_TRUE(dataset) << name;
  return dataset;
}

void add_text(hid_t object, const std::string& name, const std::string& value) {
  const Id type{H5Tcopy(H5T_C_S1), H5Tclose}, space{H5Screate(H5S_SCALAR), H5Sclose};
  H5Tset_size(type.get(), value.size() + 1);
  const Id attribute{H5Acreate2(object, name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
  ASSERT_GE(H5Awrite(attribute.get(), type.get(), value.c_str()), 0) << name;
}

// As many objects and attributes as make every form of storage appear: in headers, in one block, below an index.
TEST(H5ScanTest, AgreesWithTheLibrary) {
  const TemporaryFolder folder;
  for (const Format& format : kFormats) {
    for (const int count : {0, 1, 9, 400, 3000}) {
      SCOPED_TRACE(std::string(format.name) + " " + std::to_string(count));
      const fs::path path = folder / "f.h5";
      {
        const Id file = create(path, format.low, count == 400);
        for (int i = 0; i < count; ++i) {
          const std::string name = fmt::format("dataset.{}.{}", i, std::string(static_cast<size_t>(i % 50), 'n'));
          const Id dataset = add_dataset(file.get(), name, H5T_IEEE_F32LE, {static_cast<hsize_t>(i + 1), 3});
          add_text(dataset.get(), "text", name);
          if (i == 7)
            for (int more = 0; more < 200; ++more) add_text(dataset.get(), fmt::format("a{}", more), name);
          const std::vector<float> values(static_cast<size_t>(i + 1) * 3, static_cast<float>(i));
          H5Dwrite(dataset.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
        }
        if (format.low != H5F_LIBVER_EARLIEST) add_text(file.get(), "large", std::string(30000, 'x'));
      }
      const CheckedFile raw(path);
      const h5::Scan scan = h5::scan(raw);
      const h5::File library = h5::File::open(raw);
      ASSERT_EQ(scan.datasets.size(), static_cast<size_t>(count));
      EXPECT_TRUE(scan.complete);
      for (const auto& [name, dataset] : scan.datasets) {
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
      if (format.low != H5F_LIBVER_EARLIEST) {
        EXPECT_EQ(h5::text_of(scan.attributes, "large", "f"), std::string(30000, 'x'));
      }
    }
  }
}

TEST(H5ScanTest, ReadsIntegersOfEverySize) {
  const TemporaryFolder folder;
  {
    const Id file = create(folder / "f.h5", H5F_LIBVER_V110);
    const Id space{H5Screate(H5S_SCALAR), H5Sclose};
    const int64_t value = -5;
    for (const auto& [name, type] : {std::pair("i8", H5T_STD_I8LE), std::pair("i64", H5T_STD_I64LE),
                                     std::pair("u8", H5T_STD_U8LE), std::pair("big", H5T_STD_I64BE)}) {
      const Id attribute{H5Acreate2(file.get(), name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
      H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value);
    }
    add_text(file.get(), "text", "t");
  }
  const h5::Scan scan = h5::scan(CheckedFile(folder / "f.h5"));
  EXPECT_EQ(h5::integer_of(scan.attributes, "i8", "f"), -5);
  EXPECT_EQ(h5::integer_of(scan.attributes, "i64", "f"), -5);
  EXPECT_EQ(h5::integer_of(scan.attributes, "u8", "f"), 0);
  for (const char* name : {"big", "text", "absent"})
    expect_error([&] { h5::integer_of(scan.attributes, name, "f"); }, ExitCode::kData, {"f: ", name});
  expect_error([&] { h5::text_of(scan.attributes, "i8", "f"); }, ExitCode::kData, {"f: ", "i8", "text"});
}

// One chunk, a row of chunks, rows that may grow in one direction or in two: each has an index of its own form.
TEST(H5ScanTest, ChunksUnderEveryIndex) {
  const TemporaryFolder folder;
  for (const Format& format : kFormats) {
    for (const bool filtered : {false, true}) {
      SCOPED_TRACE(std::string(format.name) + (filtered ? " filtered" : ""));
      {
        const Id file = create(folder / "f.h5", format.low);
        const auto add = [&](const char* name, hsize_t chunk_rows, std::vector<hsize_t> largest,
                             H5D_alloc_time_t when) {
          const hsize_t dims[2] = {4, 2}, chunk[2] = {chunk_rows, 2};
          const int32_t values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
          const Id space{H5Screate_simple(2, dims, largest.data()), H5Sclose};
          const Id list{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
          H5Pset_chunk(list.get(), 2, chunk);
          H5Pset_alloc_time(list.get(), when);
          if (filtered) H5Pset_deflate(list.get(), 1);
          const Id dataset{
              H5Dcreate2(file.get(), name, H5T_STD_I32LE, space.get(), H5P_DEFAULT, list.get(), H5P_DEFAULT), H5Dclose};
          ASSERT_GE(H5Dwrite(dataset.get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
        };
        add("one", 4, {4, 2}, H5D_ALLOC_TIME_LATE);
        add("row", 1, {4, 2}, H5D_ALLOC_TIME_LATE);
        add("implicit", 1, {4, 2}, H5D_ALLOC_TIME_EARLY);
        add("grows", 1, {H5S_UNLIMITED, 2}, H5D_ALLOC_TIME_LATE);
        add("grows twice", 1, {H5S_UNLIMITED, H5S_UNLIMITED}, H5D_ALLOC_TIME_LATE);
      }
      const h5::Scan scan = h5::scan(CheckedFile(folder / "f.h5"));
      EXPECT_EQ(scan.datasets.size(), 5u);
      for (const auto& [name, dataset] : scan.datasets)
        EXPECT_EQ(dataset.storage, ScannedDataset::Storage::kChunked) << name;
    }
  }
}

// Integers are read by width alone.
TEST(H5ScanTest, IntegersWithUnusedBitsAreNone) {
  const TemporaryFolder folder;
  const auto kind_of = [&](size_t precision, size_t offset) {
    {
      const Id file = create(folder / "f.h5", H5F_LIBVER_V110), type{H5Tcopy(H5T_STD_I32LE), H5Tclose};
      H5Tset_precision(type.get(), precision);
      H5Tset_offset(type.get(), offset);
      add_dataset(file.get(), "x", type.get(), {4});
    }
    return h5::scan(CheckedFile(folder / "f.h5")).datasets.at("x").type.kind;
  };
  EXPECT_EQ(kind_of(32, 0), h5::ScannedType::Class::kInteger);
  EXPECT_EQ(kind_of(24, 0), h5::ScannedType::Class::kOther);
  EXPECT_EQ(kind_of(24, 8), h5::ScannedType::Class::kOther);
}

TEST(H5ScanTest, FloatsWithOtherFieldsAreNone) {
  const TemporaryFolder folder;
  const auto kind_of = [&](hid_t like, const std::function<void(hid_t)>& change) {
    {
      const Id file = create(folder / "f.h5", H5F_LIBVER_V110), type{H5Tcopy(like), H5Tclose};
      change(type.get());
      add_dataset(file.get(), "x", type.get(), {4});
    }
    return h5::scan(CheckedFile(folder / "f.h5")).datasets.at("x").type.kind;
  };
  using Class = h5::ScannedType::Class;
  for (const hid_t like : {H5T_IEEE_F32LE, H5T_IEEE_F64LE, H5T_IEEE_F32BE, H5T_IEEE_F64BE})
    EXPECT_EQ(kind_of(like, [](hid_t) {}), Class::kFloat);
  EXPECT_EQ(kind_of(h5::file_type(DType::kBf16).get(), [](hid_t) {}), Class::kFloat);
  EXPECT_EQ(kind_of(H5T_IEEE_F32LE, [](hid_t type) { H5Tset_size(type, 16); }), Class::kOther);
  EXPECT_EQ(kind_of(H5T_IEEE_F32LE, [](hid_t type) { H5Tset_fields(type, 31, 24, 7, 0, 23); }), Class::kOther);
}

uint64_t number_at(const std::string& bytes, size_t at, size_t count) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, count);
  return value;
}

// Of the first object header of version 1 that holds a message of this type.
struct Place {
  size_t header = 0, message = 0, end = 0;
};

Place find_message(const std::string& bytes, uint64_t type) {
  for (size_t header = 0; header + 16 <= bytes.size(); header += 8) {
    const size_t end = header + 16 + number_at(bytes, header + 8, 4);
    if (number_at(bytes, header, 2) != 1 || number_at(bytes, header + 4, 4) != 1 || end > bytes.size()) continue;
    for (size_t at = header + 16; at + 8 <= end; at += 8 + number_at(bytes, at + 2, 2))
      if (number_at(bytes, at, 2) == type) return {header, at, end};
  }
  ADD_FAILURE() << "no message of type " << type;
  return {};
}

// Moves that message behind all others and takes it from the count: the library still reads it.
void hide_message(std::string& bytes, uint64_t type) {
  const Place place = find_message(bytes, type);
  const auto at = [&](size_t offset) { return bytes.begin() + static_cast<ptrdiff_t>(offset); };
  std::rotate(at(place.message), at(place.message + 8 + number_at(bytes, place.message + 2, 2)), at(place.end));
  --bytes[place.header + 2];
}

struct Hostile {
  std::string what;
  std::function<void(hid_t)> make;
  std::vector<std::string> parts;
  uint64_t hidden = 0;  // type of the message to hide
};

constexpr uint64_t kExternalFiles = 7, kFilters = 11;

Id properties(const std::function<void(hid_t)>& set) {
  Id list{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
  set(list.get());
  return list;
}

const std::vector<Hostile> kHostile = {
    {"soft link", [](hid_t f) { H5Lcreate_soft("/x", f, "alias", H5P_DEFAULT, H5P_DEFAULT); }, {"alias", "link"}},
    {"external link",
     [](hid_t f) { H5Lcreate_external("other.h5", "/x", f, "alias", H5P_DEFAULT, H5P_DEFAULT); },
     {"alias", "link"}},
    {"two names for one dataset",
     [](hid_t f) { H5Lcreate_hard(f, "x", f, "alias", H5P_DEFAULT, H5P_DEFAULT); },
     {"alias", "overlap"}},
    {"group",
     [](hid_t f) {
       const Id group{H5Gcreate2(f, "inner", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose};
     },
     {"inner", "group"}},
    {"the root group as its own member",
     [](hid_t f) { H5Lcreate_hard(f, "/", f, "inner", H5P_DEFAULT, H5P_DEFAULT); },
     {"inner", "overlap"}},
    {"committed type",
     [](hid_t f) {
       const Id type{H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
       H5Tcommit2(f, "type", type.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
       add_dataset(f, "a", type.get(), {4});
     },
     {"dataset a", "committed"}},
    {"a type alone",
     [](hid_t f) {
       const Id type{H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
       H5Tcommit2(f, "type", type.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
     },
     {"type", "no dataset"}},
    {"external storage",
     [](hid_t f) {
       add_dataset(f, "a", H5T_IEEE_F32LE, {4},
                   properties([](hid_t p) { H5Pset_external(p, "other.bin", 0, 16); }).get());
     },
     {"dataset a", "external files"}},
    {"hidden external storage",
     [](hid_t f) {
       add_dataset(f, "a", H5T_IEEE_F32LE, {4},
                   properties([](hid_t p) { H5Pset_external(p, "other.bin", 0, 16); }).get());
     },
     {"dataset a", "external files"},
     kExternalFiles},
    {"hidden filter",
     [](hid_t f) {
       add_dataset(f, "a", H5T_IEEE_F32LE, {4}, properties([](hid_t p) {
                                                  const hsize_t chunk[1] = {2};
                                                  H5Pset_chunk(p, 1, chunk);
                                                  H5Pset_filter(p, 32001, H5Z_FLAG_OPTIONAL, 0, nullptr);
                                                }).get());
     },
     {"dataset a", "messages, expected"},
     kFilters},
    {"nothing written",
     [](hid_t f) { add_dataset(f, "a", H5T_IEEE_F32LE, {4}, properties([](hid_t) {}).get()); },
     {"dataset a", "no space allocated"}},
    {"no chunk written",
     [](hid_t f) {
       add_dataset(f, "a", H5T_IEEE_F32LE, {4}, properties([](hid_t p) {
                                                  const hsize_t chunk[1] = {2};
                                                  H5Pset_chunk(p, 1, chunk);
                                                }).get());
     },
     {"dataset a", "no space allocated"}},
    {"virtual dataset",
     [](hid_t f) {
       const hsize_t dims[1] = {4};
       const Id space{H5Screate_simple(1, dims, nullptr), H5Sclose};
       add_dataset(f, "a", H5T_IEEE_F32LE, {4},
                   properties([&](hid_t p) { H5Pset_virtual(p, space.get(), "other.h5", "/x", space.get()); }).get());
     },
     {"dataset a", "virtual"}},
    {"foreign filter",
     [](hid_t f) {
       add_dataset(f, "a", H5T_IEEE_F32LE, {4}, properties([](hid_t p) {
                                                  const hsize_t chunk[1] = {2};
                                                  H5Pset_chunk(p, 1, chunk);
                                                  H5Pset_filter(p, 32001, H5Z_FLAG_OPTIONAL, 0, nullptr);
                                                }).get());
     },
     {"dataset a", "filter 32001"}},
    {"an absurd shape in chunks",
     [](hid_t f) {
       add_dataset(f, "a", H5T_IEEE_F32LE, {hsize_t{1} << 30, hsize_t{1} << 28}, properties([](hid_t p) {
                                                                                   const hsize_t chunk[2] = {2, 2};
                                                                                   H5Pset_chunk(p, 2, chunk);
                                                                                 }).get());
     },
     {"dataset a", "no file"}},
    {"null dataspace",
     [](hid_t f) {
       const Id space{H5Screate(H5S_NULL), H5Sclose};
       const Id set{H5Dcreate2(f, "a", H5T_IEEE_F32LE, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Dclose};
     },
     {"dataset a", "simple shape"}},
};

TEST(H5ScanTest, RefusesByName) {
  const TemporaryFolder folder;
  for (const Format& format : kFormats) {
    for (const Hostile& hostile : kHostile) {
      if (hostile.what == "virtual dataset" && format.low == H5F_LIBVER_EARLIEST) continue;
      if (hostile.hidden != 0 && format.low != H5F_LIBVER_EARLIEST) continue;  // of header version 1
      SCOPED_TRACE(std::string(format.name) + ": " + hostile.what);
      {
        const Id file = create(folder / "f.h5", format.low);
        const float values[4] = {};
        H5Dwrite(add_dataset(file.get(), "x", H5T_IEEE_F32LE, {4}).get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL,
                 H5P_DEFAULT, values);
        hostile.make(file.get());
      }
      if (hostile.hidden != 0) {
        std::string bytes = test::read_bytes(folder / "f.h5");
        hide_message(bytes, hostile.hidden);
        test::write_bytes(folder / "f.h5", bytes);
      }
      std::vector<std::string> parts = hostile.parts;
      parts.push_back("f.h5");
      expect_error([&] { h5::scan(CheckedFile(folder / "f.h5")); }, ExitCode::kData, parts);
    }
  }
}

// What the library would follow to places that the scan has not seen.
TEST(H5ScanTest, RefusesWhatOnlyTheLibraryReads) {
  const TemporaryFolder folder;
  const auto expect_refused = [&](H5F_libver_t low, const std::function<void(std::string&)>& change,
                                  const std::vector<std::string>& parts) {
    {
      const Id file = create(folder / "f.h5", low);
      for (int i = 0; i < 40; ++i) add_dataset(file.get(), fmt::format("d{}", i), H5T_IEEE_F32LE, {4});
    }
    std::string bytes = test::read_bytes(folder / "f.h5");
    h5::scan(CheckedFile(folder / "f.h5"));
    change(bytes);
    test::write_bytes(folder / "f.h5", bytes);
    expect_error([&] { h5::scan(CheckedFile(folder / "f.h5")); }, ExitCode::kData, parts);
  };
  constexpr size_t kCachedTree = 80;  // in the superblock's entry of the root group
  expect_refused(H5F_LIBVER_EARLIEST, [](std::string& bytes) { bytes[kCachedTree] ^= 8; },
                 {"root group", "symbol table"});
  for (const char* name : {"TREE", "SNOD"}) {  // more than a node has room for
    const auto overfill = [&](std::string& bytes) {
      bytes.replace(bytes.find(name) + 6, 2, test::little_endian(name[0] == 'T' ? 33 : 9, 2));
    };
    expect_refused(H5F_LIBVER_EARLIEST, overfill, {"expected at most"});
  }
  const auto key_nowhere = [](std::string& bytes) {
    bytes.replace(bytes.find("TREE") + 24, 8, test::little_endian(1 << 20, 8));
  };
  expect_refused(H5F_LIBVER_EARLIEST, key_nowhere, {"B-tree of the group", "a name at byte 1048576"});
  constexpr uint64_t kFillValue = 5, kShared = 2;
  expect_refused(H5F_LIBVER_EARLIEST,
                 [](std::string& bytes) { bytes[find_message(bytes, kFillValue).message + 4] |= kShared; },
                 {"dataset", "shared"});
  expect_refused(H5F_LIBVER_V18,
                 [](std::string& bytes) {  // ids of 17 bytes hold addresses
                   constexpr size_t kIdBytes = 5, kHeaderBytes = 146;
                   const size_t heap = bytes.find("FRHP");
                   ASSERT_NE(heap, std::string::npos);
                   bytes[heap + kIdBytes] = 17;
                   bytes.replace(heap + kHeaderBytes - 4, 4,
                                 test::little_endian(checksum(bytes.substr(heap, kHeaderBytes - 4)), 4));
                 },
                 {"heap", "ids of 17 bytes"});
}

// A small file with many names that are ends of a few long ones.
TEST(H5ScanTest, NamesAreBoundedInSum) {
  using test::little_endian;
  constexpr size_t kNames = 34 * 4088, kInNode = 65535, kNodes = (kNames + kInNode - 1) / kInNode;
  std::string names(8, '\0'), nodes,
      tree = "TREE" + little_endian(0, 2) + little_endian(kNodes, 2) + std::string(16, '\xff');
  for (size_t i = 0; i < 34; ++i) names += std::string(4088, 'n') + fmt::format("{:08}", i) + '\0';
  constexpr size_t kRoot = 96, kTree = kRoot + 40, kHeap = kTree + 24 + kNodes * 16 + 8, kHeapData = kHeap + 32;
  for (size_t i = 0; i < kNames; ++i) {
    if (i % kInNode == 0) {
      tree += little_endian(0, 8) + little_endian(kHeapData + names.size() + nodes.size(), 8);
      nodes += "SNOD" + little_endian(1, 2) + little_endian(std::min(kInNode, kNames - i), 2);
    }
    nodes += little_endian(8 + i / 4088 * 4097 + i % 4088, 8) + little_endian(kRoot, 8) + std::string(24, '\0');
  }
  const size_t bytes = kHeapData + names.size() + nodes.size();
  const std::string signature = "\x89HDF\r\n\x1a\n", nowhere(8, '\xff');
  const std::string superblock = signature + little_endian(0, 5) + little_endian(8, 1) + little_endian(8, 2) +
                                 little_endian(32768, 2) + little_endian(16, 6) + little_endian(0, 8) + nowhere +
                                 little_endian(bytes, 8) + nowhere + little_endian(0, 8) + little_endian(kRoot, 8) +
                                 std::string(24, '\0');
  const std::string root = little_endian(1, 2) + little_endian(1, 2) + little_endian(1, 4) + little_endian(24, 8) +
                           little_endian(0x11, 2) + little_endian(16, 6) + little_endian(kTree, 8) +
                           little_endian(kHeap, 8);
  const TemporaryFolder folder;
  test::write_bytes(folder / "f.h5", superblock + root + tree + little_endian(0, 8) + "HEAP" + little_endian(0, 4) +
                                         little_endian(names.size(), 8) + nowhere + little_endian(kHeapData, 8) +
                                         names + nodes);
  expect_error([&] { h5::scan(CheckedFile(folder / "f.h5"), {.only = {"x"}}); }, ExitCode::kData,
               {"name in the heap", "bytes of metadata"});
}

TEST(H5ScanTest, RefusesNamesThatAreNone) {
  const TemporaryFolder folder;
  for (const Format& format : kFormats) {
    for (const size_t length : {4096u, 4097u, 20000u}) {
      {
        const Id file = create(folder / "f.h5", format.low);
        for (const char end : {'a', 'b'})
          add_dataset(file.get(), std::string(length - 1, 'n') + end, H5T_IEEE_F32LE, {4});
      }
      if (length <= 4096)
        EXPECT_EQ(h5::scan(CheckedFile(folder / "f.h5")).datasets.size(), 2u) << format.name;
      else
        expect_error([&] { h5::scan(CheckedFile(folder / "f.h5")); }, ExitCode::kData, {"f.h5", "name"});
    }
  }
}

// An input may hold more than what is read: only what is read must be plain.
TEST(H5ScanTest, LooksOnlyAtWhatIsAskedFor) {
  const TemporaryFolder folder;
  for (const Format& format : kFormats) {
    {
      const Id file = create(folder / "f.h5", format.low);
      add_dataset(file.get(), "x", H5T_IEEE_F32LE, {4});
      for (const Hostile& hostile : kHostile)
        if (hostile.what == "soft link" || hostile.what == "external storage" || hostile.what == "external link")
          hostile.make(file.get());
    }
    EXPECT_EQ(h5::scan(CheckedFile(folder / "f.h5"), {.only = {"x", "absent"}}).datasets.size(), 1u) << format.name;
    expect_error([&] { h5::scan(CheckedFile(folder / "f.h5"), {.only = {"a"}}); }, ExitCode::kData, {"dataset a"});
    expect_error([&] { h5::scan(CheckedFile(folder / "f.h5"), {.only = {"alias"}}); }, ExitCode::kData,
                 {"alias", "link"});
  }
}

// Damage of the metadata, whatever the form: refused with one line, or nothing that was asked for has changed.
TEST(H5ScanTest, RandomDamageNeverGoesFurther) {
  const TemporaryFolder folder;
  std::mt19937 random(11);
  for (const Format& format : kFormats) {
    {
      const Id file = create(folder / "f.h5", format.low);
      for (int i = 0; i < 40; ++i)
        add_text(add_dataset(file.get(), fmt::format("d{}", i), H5T_IEEE_F32LE, {4}).get(), "text", "value");
    }
    const std::string good = test::read_bytes(folder / "f.h5");
    size_t refused = 0;
    for (int run = 0; run < 2000; ++run) {
      std::string bad = good;
      for (uint32_t change = 0; change < 1 + random() % 4; ++change)
        bad[random() % bad.size()] = static_cast<char>(random() % 4 == 0 ? 0xff : random());
      test::write_bytes(folder / "f.h5", bad);
      try {
        h5::scan(CheckedFile(folder / "f.h5"));
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ExitCode::kData) << error.what();
        ++refused;
      }
    }
    EXPECT_GT(refused, 200u) << format.name;
    test::write_bytes(folder / "f.h5", good);
  }
}

}  // namespace
}  // namespace lfm2
