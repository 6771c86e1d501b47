// A thin checked layer over the HDF5 C API: owned ids, errors that carry the library's own message, the few calls the
// project needs.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/error.h"
#include "stage/support/checked_file.h"

namespace lfm2::h5 {

// Owns one HDF5 id.
class Id {
 public:
  Id() = default;
  Id(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Id(Id&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Id& operator=(Id&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Id() {
    if (id_ >= 0) close_(id_);
  }
  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  // Closes now; false where that failed.
  bool close_now() {
    const hid_t id = std::exchange(id_, H5I_INVALID_HID);
    return id < 0 || close_(id) >= 0;
  }

 private:
  hid_t id_ = H5I_INVALID_HID;
  herr_t (*close_)(hid_t) = nullptr;
};

std::string library_version();  // "1.10.8"

// The type that elements are stored as: little-endian; bf16 is a custom 16-bit float (1 sign, 8 exponent, 7 mantissa
// bits), which h5dump prints as numbers and h5py reads as float32.
Id file_type(DType dtype);

// An open file. Every error is Error(kData) for content, kIo/kCantCreate for the system, kNoInput for a missing file,
// with the path.
class File {
 public:
  // The library is not made for files from strangers: h5::scan comes first, of the same CheckedFile, which may go then.
  static File open(const CheckedFile& file);
  // Truncates. Format V110 (every metadata block has a checksum of its own), no time stamps: equal content gives equal
  // bytes.
  static File create(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  hid_t id() const { return file_.get(); }

  void set_attribute(const std::string& name, const std::string& value, const std::string& object = "/");
  void set_attribute(const std::string& name, int64_t value, const std::string& object = "/");

  // A contiguous dataset whose space is allocated now and not filled. Returns its byte offset in the file.
  uint64_t create_dataset(const std::string& name, DType dtype, const std::vector<uint64_t>& dims);
  // The same for int64 (offsets of packed data).
  void write_i64(const std::string& name, const std::vector<int64_t>& values);
  void write_i64(const std::string& name, int64_t count, const std::function<int64_t(int64_t)>& value_at);

  // Rows [first, first + count) of the first axis, converted by the library to `memory` (a native type).
  void read_rows(const std::string& name, uint64_t first, uint64_t count, hid_t memory, void* into) const;
  void flush();
  void close();  // with its error, unlike the destructor

 private:
  File(std::filesystem::path path, Id file) : path_(std::move(path)), file_(std::move(file)) {}
  Id open_dataset(const std::string& name) const;
  [[noreturn]] void fail(ExitCode code, const std::string& what) const;

  std::filesystem::path path_;
  Id file_;
};

}  // namespace lfm2::h5
