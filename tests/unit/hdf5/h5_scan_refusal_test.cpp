// The scan of HDF5 files refuses, by name, what could lead the library astray.
#include <algorithm>
#include <cstring>
#include <random>

#include "support/h5_scan_support.h"

namespace lfm2 {
namespace {

using h5::Id;
using test::add_dataset;
using test::add_text;
using test::Fill;
using test::H5Format;
using test::H5ScanTest;
using test::kH5Formats;
using test::little_endian;

uint64_t number_at(const std::string& bytes, size_t at, size_t count) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, count);
  return value;
}

// Where the first message of a type stands in an object header of version 1, and where that header ends.
struct MessagePosition {
  size_t header = 0, message = 0, end = 0;
};

MessagePosition find_message(const std::string& bytes, uint64_t type) {
  for (size_t header = 0; header + 16 <= bytes.size(); header += 8) {
    const size_t end = header + 16 + number_at(bytes, header + 8, 4);
    if (number_at(bytes, header, 2) != 1 || number_at(bytes, header + 4, 4) != 1 || end > bytes.size()) continue;
    for (size_t at = header + 16; at + 8 <= end; at += 8 + number_at(bytes, at + 2, 2))
      if (number_at(bytes, at, 2) == type) return {header, at, end};
  }
  ADD_FAILURE() << "no message of type " << type;
  return {};
}

// Moves the message behind all others and lowers the count of messages: the library reads it nevertheless.
void hide_message(std::string& bytes, uint64_t type) {
  const MessagePosition place = find_message(bytes, type);
  const auto at = [&](size_t offset) { return bytes.begin() + static_cast<ptrdiff_t>(offset); };
  std::rotate(at(place.message), at(place.message + 8 + number_at(bytes, place.message + 2, 2)), at(place.end));
  --bytes[place.header + 2];
}

// Each of these functions adds something to a file that the scan must refuse.

void add_soft_link(hid_t file) { H5Lcreate_soft("/x", file, "alias", H5P_DEFAULT, H5P_DEFAULT); }

void add_external_link(hid_t file) { H5Lcreate_external("other.h5", "/x", file, "alias", H5P_DEFAULT, H5P_DEFAULT); }

void add_group(hid_t file) {
  const Id group{H5Gcreate2(file, "inner", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose};
}

Id add_committed_type(hid_t file) {
  Id type{H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
  H5Tcommit2(file, "type", type.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  return type;
}

void add_with(hid_t file, const Fill& set, const std::vector<hsize_t>& dims = {4}) {
  add_dataset(file, "a", H5T_IEEE_F32LE, test::simple_space(dims).get(), test::properties(set).get());
}

void add_external_storage(hid_t file) {
  add_with(file, [](hid_t list) { H5Pset_external(list, "other.bin", 0, 16); });
}

void add_chunked(hid_t file, const std::vector<hsize_t>& dims, const Fill& more = {}) {
  const auto in_twos = [&](hid_t list) {
    const std::vector<hsize_t> chunk(dims.size(), 2);
    H5Pset_chunk(list, static_cast<int>(chunk.size()), chunk.data());
    if (more) more(list);
  };
  add_with(file, in_twos, dims);
}

void add_foreign_filter(hid_t file) {
  add_chunked(file, {4}, [](hid_t list) { H5Pset_filter(list, 32001, H5Z_FLAG_OPTIONAL, 0, nullptr); });
}

void add_virtual(hid_t file) {
  const Id space = test::simple_space({4});
  add_with(file, [&](hid_t list) { H5Pset_virtual(list, space.get(), "other.h5", "/x", space.get()); });
}

void add_null_space(hid_t file) {
  const Id space{H5Screate(H5S_NULL), H5Sclose};
  add_dataset(file, "a", H5T_IEEE_F32LE, space.get(), H5P_DEFAULT);
}

struct Hostile {
  std::string what;
  Fill make;
  std::vector<std::string> parts;
  uint64_t hidden = 0;  // type of the message to hide; 0: none
};

std::vector<Hostile> hostile_files() {
  constexpr uint64_t kExternalFiles = 7, kFilters = 11;
  const auto second_name = [](const char* target, const char* name) {
    return [=](hid_t f) { H5Lcreate_hard(f, target, f, name, H5P_DEFAULT, H5P_DEFAULT); };
  };
  const auto of_committed_type = [](hid_t f) { add_dataset(f, "a", add_committed_type(f).get(), {4}); };
  const auto absurd = [](hid_t f) { add_chunked(f, {hsize_t{1} << 30, hsize_t{1} << 28}); };
  return {
      {"soft link", add_soft_link, {"alias", "link"}},
      {"external link", add_external_link, {"alias", "link"}},
      {"two names for one dataset", second_name("x", "alias"), {"alias", "overlap"}},
      {"group", add_group, {"inner", "group"}},
      {"the root group as its own member", second_name("/", "inner"), {"inner", "overlap"}},
      {"committed type", of_committed_type, {"dataset a", "committed"}},
      {"a type alone", add_committed_type, {"type", "no dataset"}},
      {"external storage", add_external_storage, {"dataset a", "external files"}},
      {"hidden external storage", add_external_storage, {"dataset a", "external files"}, kExternalFiles},
      {"hidden filter", add_foreign_filter, {"dataset a", "messages, expected"}, kFilters},
      {"nothing written", [](hid_t f) { add_with(f, [](hid_t) {}); }, {"dataset a", "no space allocated"}},
      {"no chunk written", [](hid_t f) { add_chunked(f, {4}); }, {"dataset a", "no space allocated"}},
      {"virtual dataset", add_virtual, {"dataset a", "virtual"}},
      {"foreign filter", add_foreign_filter, {"dataset a", "filter 32001"}},
      {"an absurd shape in chunks", absurd, {"dataset a", "no file"}},
      {"null dataspace", add_null_space, {"dataset a", "simple shape"}},
  };
}

TEST_F(H5ScanTest, RefusesByName) {
  for (const H5Format& format : kH5Formats) {
    for (const Hostile& hostile : hostile_files()) {
      if (hostile.what == "virtual dataset" && format.low == H5F_LIBVER_EARLIEST) continue;
      // Only headers of version 1 have the count.
      if (hostile.hidden != 0 && format.low != H5F_LIBVER_EARLIEST) continue;
      SCOPED_TRACE(std::string(format.name) + ": " + hostile.what);
      write(format.low, [&](hid_t file) {
        const float values[4] = {};
        H5Dwrite(add_dataset(file, "x", H5T_IEEE_F32LE, {4}).get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                 values);
        hostile.make(file);
      });
      if (hostile.hidden != 0) {
        std::string bytes = test::read_bytes(path());
        hide_message(bytes, hostile.hidden);
        test::write_bytes(path(), bytes);
      }
      std::vector<std::string> parts = hostile.parts;
      parts.push_back("f.h5");
      expect_refused(parts);
    }
  }
}

// Structures by which the library would get to places that the scan has not seen.
TEST_F(H5ScanTest, RefusesWhatOnlyTheLibraryReads) {
  const auto expect_change_refused = [&](H5F_libver_t low, const std::function<void(std::string&)>& change,
                                         const std::vector<std::string>& parts) {
    write(low, [](hid_t file) {
      for (int i = 0; i < 40; ++i) add_dataset(file, fmt::format("d{}", i), H5T_IEEE_F32LE, {4});
    });
    scan();
    std::string bytes = test::read_bytes(path());
    change(bytes);
    test::write_bytes(path(), bytes);
    expect_refused(parts);
  };
  // The place, in the superblock, of the root group's repeated B-tree address.
  constexpr size_t kCachedTree = 80;
  expect_change_refused(H5F_LIBVER_EARLIEST, [](std::string& bytes) { bytes[kCachedTree] ^= 8; },
                        {"root group", "symbol table"});
  for (const char* name : {"TREE", "SNOD"}) {  // counts larger than a node has room for
    const auto overfill = [&](std::string& bytes) {
      bytes.replace(bytes.find(name) + 6, 2, little_endian(name[0] == 'T' ? 33 : 9, 2));
    };
    expect_change_refused(H5F_LIBVER_EARLIEST, overfill, {"expected at most"});
  }
  const auto key_nowhere = [](std::string& bytes) {
    bytes.replace(bytes.find("TREE") + 24, 8, little_endian(1 << 20, 8));
  };
  expect_change_refused(H5F_LIBVER_EARLIEST, key_nowhere, {"B-tree of the group", "a name at byte 1048576"});
  const auto share = [](std::string& bytes) {
    constexpr uint64_t kFillValue = 5, kShared = 2;
    bytes[find_message(bytes, kFillValue).message + 4] |= kShared;
  };
  expect_change_refused(H5F_LIBVER_EARLIEST, share, {"dataset", "shared"});
  const auto lengthen_ids = [](std::string& bytes) {  // ids of 17 bytes hold addresses
    constexpr size_t kIdBytes = 5, kHeaderBytes = 146;
    const size_t heap = bytes.find("FRHP");
    ASSERT_NE(heap, std::string::npos);
    bytes[heap + kIdBytes] = 17;
    bytes.replace(heap + kHeaderBytes - 4, 4,
                  little_endian(test::metadata_checksum(bytes.substr(heap, kHeaderBytes - 4)), 4));
  };
  expect_change_refused(H5F_LIBVER_V18, lengthen_ids, {"heap", "ids of 17 bytes"});
}

// A small file whose many names are the ends of a few long ones.
TEST_F(H5ScanTest, NamesAreBoundedInSum) {
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
  test::write_bytes(path(), superblock + root + tree + little_endian(0, 8) + "HEAP" + little_endian(0, 4) +
                                little_endian(names.size(), 8) + nowhere + little_endian(kHeapData, 8) + names + nodes);
  expect_refused({"name in the heap", "bytes of metadata"}, {.only = {"x"}});
}

TEST_F(H5ScanTest, RefusesNamesThatAreNone) {
  for (const H5Format& format : kH5Formats) {
    for (const size_t length : {4096u, 4097u, 20000u}) {
      write(format.low, [&](hid_t file) {
        for (const char end : {'a', 'b'}) add_dataset(file, std::string(length - 1, 'n') + end, H5T_IEEE_F32LE, {4});
      });
      if (length <= 4096)
        EXPECT_EQ(scan().datasets.size(), 2u) << format.name;
      else
        expect_refused({"f.h5", "name"});
    }
  }
}

// An input may hold more than is read. Only what is read must be acceptable.
TEST_F(H5ScanTest, LooksOnlyAtWhatIsAskedFor) {
  for (const H5Format& format : kH5Formats) {
    write(format.low, [](hid_t file) {
      add_dataset(file, "x", H5T_IEEE_F32LE, {4});
      add_soft_link(file);
      add_external_link(file);
      add_external_storage(file);
    });
    EXPECT_EQ(scan({.only = {"x", "absent"}}).datasets.size(), 1u) << format.name;
    expect_refused({"dataset a"}, {.only = {"a"}});
    expect_refused({"alias", "link"}, {.only = {"alias"}});
  }
}

// Random damage of the metadata is refused with one line, or changes nothing that was asked for.
TEST_F(H5ScanTest, RandomDamageNeverGoesFurther) {
  std::mt19937 random(11);
  for (const H5Format& format : kH5Formats) {
    write(format.low, [](hid_t file) {
      for (int i = 0; i < 40; ++i)
        add_text(add_dataset(file, fmt::format("d{}", i), H5T_IEEE_F32LE, {4}).get(), "text", "value");
    });
    const std::string good = test::read_bytes(path());
    size_t refused = 0;
    for (int run = 0; run < 500; ++run) {
      std::string bad = good;
      for (uint32_t change = 0; change < 1 + random() % 4; ++change)
        bad[random() % bad.size()] = static_cast<char>(random() % 4 == 0 ? 0xff : random());
      test::write_bytes(path(), bad);
      try {
        scan();
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ExitCode::kData) << error.what();
        ++refused;
      }
    }
    EXPECT_GT(refused, 50u) << format.name;
  }
}

}  // namespace
}  // namespace lfm2
