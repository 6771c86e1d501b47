// Reads the strings of a dataset, of fixed or variable length. Contiguous strings are read without the HDF5 library,
// which is not safe on untrusted files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "stage/hdf5/h5_blocks.h"
#include "stage/hdf5/h5_scan.h"

namespace lfm2::h5 {

class TextReader {
 public:
  // h5::scan() must have accepted the dataset, which must contain strings. `file` and `dataset` must outlive the
  // reader.
  TextReader(const CheckedFile& file, std::string name, const ScannedDataset& dataset);

  // Elements [first, first + count), without their padding of NULs or spaces. Error(kData) for damage, and for strings
  // above 1 MiB.
  std::vector<std::string> read(uint64_t first, uint64_t count);

 private:
  struct Object {
    uint64_t index, first, bytes;
  };
  std::string variable_text(Cursor& element);
  const Object& object_at(uint64_t address, uint64_t index);
  void read_collection(uint64_t address, std::vector<Object>& objects);

  const CheckedFile& file_;
  std::string name_;
  const ScannedDataset& dataset_;
  Blocks blocks_;
  std::map<uint64_t, std::vector<Object>> collections_;  // keyed by address; objects in the order of their indexes
  uint64_t variable_bytes_ = 0;                          // of all strings read so far
};

}  // namespace lfm2::h5
