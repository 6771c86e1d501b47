// Files made with the HDF5 library for the tests of the scan, in each of its formats.
#pragma once

#include <hdf5.h>

#include <functional>
#include <string>
#include <vector>

#include "stage/hdf5/h5.h"
#include "stage/hdf5/h5_scan.h"
#include "support/weights_support.h"

namespace lfm2::test {

struct H5Format {
  const char* name;
  H5F_libver_t low;
};
inline constexpr H5Format kH5Formats[] = {
    {"earliest", H5F_LIBVER_EARLIEST}, {"v18", H5F_LIBVER_V18}, {"v110", H5F_LIBVER_V110}};

using Fill = std::function<void(hid_t)>;  // sets the content of a file, or the properties of a list

// One file that a test may write several times.
class H5ScanTest : public testing::Test {
 public:
  const std::filesystem::path& path() const { return path_; }

  void write(H5F_libver_t low, const Fill& fill, bool by_order = false) const {
    const h5::Id access{H5Pcreate(H5P_FILE_ACCESS), H5Pclose}, creation{H5Pcreate(H5P_FILE_CREATE), H5Pclose};
    H5Pset_libver_bounds(access.get(), low, H5F_LIBVER_LATEST);
    if (by_order) H5Pset_link_creation_order(creation.get(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
    const h5::Id file{H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose};
    fill(file.get());
  }
  h5::Scan scan(const h5::ScanRules& rules = {}) const { return h5::scan(CheckedFile(path_), rules); }
  void expect_refused(const std::vector<std::string>& parts, const h5::ScanRules& rules = {}) const {
    expect_error([&] { scan(rules); }, ExitCode::kData, parts);
  }

 private:
  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "f.h5";
};

inline h5::Id properties(const Fill& set) {
  h5::Id list{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
  set(list.get());
  return list;
}

inline h5::Id simple_space(const std::vector<hsize_t>& dims, const hsize_t* largest = nullptr) {
  return {H5Screate_simple(static_cast<int>(dims.size()), dims.data(), largest), H5Sclose};
}

inline h5::Id add_dataset(hid_t file, const std::string& name, hid_t type, hid_t space, hid_t creation) {
  h5::Id dataset{H5Dcreate2(file, name.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT), H5Dclose};
  EXPECT_TRUE(dataset) << name;
  return dataset;
}

// A dataset whose space is allocated, but whose values are not written.
inline h5::Id add_dataset(hid_t file, const std::string& name, hid_t type, const std::vector<hsize_t>& dims) {
  const h5::Id early = properties([](hid_t list) { H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY); });
  return add_dataset(file, name, type, simple_space(dims).get(), early.get());
}

inline void add_text(hid_t object, const std::string& name, const std::string& value) {
  const h5::Id type{H5Tcopy(H5T_C_S1), H5Tclose}, space{H5Screate(H5S_SCALAR), H5Sclose};
  H5Tset_size(type.get(), value.size() + 1);
  const h5::Id attribute{H5Acreate2(object, name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
  ASSERT_GE(H5Awrite(attribute.get(), type.get(), value.c_str()), 0) << name;
}

inline uint32_t metadata_checksum(const std::string& text) {
  return h5::metadata_checksum(std::as_bytes(std::span(text)));
}

}  // namespace lfm2::test
