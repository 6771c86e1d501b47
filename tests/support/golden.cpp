// Reads HDF5 datasets as doubles.
#include "support/golden.h"

#include <hdf5.h>

#include <functional>
#include <numeric>
#include <stdexcept>

namespace lfm2::test {

namespace {

// An HDF5 id with the function that closes it.
class Id {
 public:
  Id(hid_t id, herr_t (*close)(hid_t), const std::string& what) : id_(id), close_(close) {
    if (id < 0) throw std::runtime_error("golden: cannot open " + what);
  }
  ~Id() { close_(id_); }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  operator hid_t() const { return id_; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

}  // namespace

std::filesystem::path golden_dir() { return LFM2_GOLDEN_DIR; }

Array read_array(const std::filesystem::path& file, const std::string& dataset) {
  const Id opened(H5Fopen(file.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose, file.string());
  const Id data(H5Dopen2(opened, dataset.c_str(), H5P_DEFAULT), H5Dclose, file.string() + ":" + dataset);
  const Id space(H5Dget_space(data), H5Sclose, dataset + " (extent)");
  std::vector<hsize_t> extents(static_cast<size_t>(H5Sget_simple_extent_ndims(space)));
  H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  Array array;
  array.dims.assign(extents.begin(), extents.end());
  array.values.resize(std::accumulate(extents.begin(), extents.end(), size_t{1}, std::multiplies<>()));
  if (H5Dread(data, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, array.values.data()) < 0)
    throw std::runtime_error("golden: cannot read " + file.string() + ":" + dataset);
  return array;
}

Array golden_operator(const std::string& dataset) { return read_array(golden_dir() / "operators.h5", dataset); }

}  // namespace lfm2::test
