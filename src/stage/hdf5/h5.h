// A thin checked layer over the HDF5 C API: owned ids, errors with the library's own message, and the few calls that
// the project needs.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/checked_file.h"
#include "base/dtype.h"
#include "base/error.h"

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
  // Closes the id now. Returns false if that failed.
  bool close_now() {
    const hid_t id = std::exchange(id_, H5I_INVALID_HID);
    return id < 0 || close_(id) >= 0;
  }

 private:
  hid_t id_ = H5I_INVALID_HID;
  herr_t (*close_)(hid_t) = nullptr;
};

std::string library_version();  // "1.10.8"

// The little-endian type of the elements in a file. For bf16 it is a custom 16-bit float (1 sign, 8 exponent, 7
// mantissa bits), which h5dump prints as numbers and h5py reads as float32. For fp8 it is unsigned bytes, because the
// library would read the largest exponent of such a float as infinity.
Id file_type(DType dtype);

// An open HDF5 file. Every error names the path: Error(kData) for bad content, kNoInput for a missing file, kIo or
// kCantCreate if the system fails.
class File {
 public:
  // The library is not safe on untrusted files, so h5::scan() must accept `file` first. `file` may be closed
  // afterwards.
  static File open(const CheckedFile& file);
  // Overwrites an existing file. Format V110 gives every metadata block a checksum. No time stamps are written, so
  // equal content gives equal bytes.
  static File create(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  hid_t id() const { return file_.get(); }

  void set_attribute(const std::string& name, const std::string& value, const std::string& object = "/");
  void set_attribute(const std::string& name, int64_t value, const std::string& object = "/");

  // Creates a contiguous dataset and allocates its space without filling it. Returns its byte offset in the file.
  uint64_t create_dataset(const std::string& name, DType dtype, const std::vector<uint64_t>& dims);
  // Creates an int64 dataset [values] and writes it; used for the offsets of packed data.
  void write_i64(const std::string& name, const std::vector<int64_t>& values);
  void write_i64(const std::string& name, int64_t count, const std::function<int64_t(int64_t)>& value_at);

  // Creates a dataset [values] of UTF-8 strings of variable length, without NULs, and writes it.
  void write_texts(const std::string& name, int64_t count, const std::function<std::string(int64_t)>& value_at);

  // Reads rows [first, first + count) of the first axis; the library converts them to the native type `memory`. Only
  // one thread at a time may read.
  void read_rows(const std::string& name, uint64_t first, uint64_t count, hid_t memory, void* into) const;
  // The same for strings. Strings of fixed length include their padding.
  std::vector<std::string> read_texts(const std::string& name, uint64_t first, uint64_t count) const;
  void flush();
  void close();  // throws if closing fails, which the destructor cannot

 private:
  File(std::filesystem::path path, Id file) : path_(std::move(path)), file_(std::move(file)) {}
  Id open_dataset(const std::string& name) const;
  const Id& dataset_in_chunks(const std::string& name) const;
  [[noreturn]] void fail(ExitCode code, const std::string& what) const;

  std::filesystem::path path_;
  Id file_;
  // Open chunked datasets by name, because closing one drops its unpacked chunks; an empty id: the dataset is not
  // chunked.
  mutable std::map<std::string, Id> in_chunks_;
};

}  // namespace lfm2::h5
