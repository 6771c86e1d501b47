// Shards of a golden case that a test may damage, and changes to finished shards, made without the project's own layer.
// Used by the tests of shards.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "base/checksum.h"
#include "stage/hdf5/h5.h"
#include "stage/shards/shard_format.h"
#include "stage/shards/shard_reader.h"
#include "support/weights_support.h"
#include "weights-tools/formats/shard_writer.h"
#include "weights-tools/model/copy.h"

namespace lfm2::test {

inline const std::string kNorm = "model.layers.0.ffn_norm.weight";  // [48], in the first stage

inline void split(const std::string& golden_case, const std::filesystem::path& out,
                  const std::vector<LayerRange>& stages, std::optional<DType> dtype = {}) {
  const auto source = open_model(golden_dir() / golden_case);
  ShardWriter writer(*source, stages, dtype, out, false);
  Progress progress("split", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  copy_model(*source, writer, progress);
}

inline std::string read_tensor(const ShardSet& shards, const ShardTensor& tensor) {
  std::string bytes;
  shards.read(tensor, [&](uint64_t first, std::span<const std::byte> piece) {
    EXPECT_EQ(first, bytes.size());
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return bytes;
}

// Opens a finished shard for writing, without the project's own layer.
inline void edit_shard(const std::filesystem::path& path, const std::function<void(hid_t)>& change) {
  const h5::Id access{H5Pcreate(H5P_FILE_ACCESS), H5Pclose};
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  const h5::Id file{H5Fopen(path.c_str(), H5F_ACC_RDWR, access.get()), H5Fclose};
  ASSERT_TRUE(file) << path;
  change(file.get());
}

inline void remove_attribute(hid_t file, const char* object, const char* name) {
  ASSERT_GE(H5Adelete_by_name(file, object, name, H5P_DEFAULT), 0) << name;
}

inline void add_text(hid_t file, const char* object, const char* name, const std::string& value) {
  const h5::Id owner{H5Oopen(file, object, H5P_DEFAULT), H5Oclose}, type{H5Tcopy(H5T_C_S1), H5Tclose};
  const h5::Id space{H5Screate(H5S_SCALAR), H5Sclose};
  H5Tset_size(type.get(), value.size() + 1);
  const h5::Id attribute{H5Acreate2(owner.get(), name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
  ASSERT_GE(H5Awrite(attribute.get(), type.get(), value.c_str()), 0) << name;
}

inline void set_text(hid_t file, const std::string& object, const char* name, const std::string& value) {
  if (H5Aexists_by_name(file, object.c_str(), name, H5P_DEFAULT) > 0) remove_attribute(file, object.c_str(), name);
  add_text(file, object.c_str(), name, value);
}

// A dataset of this type and shape, with a checksum that is not its own.
inline void replace_dataset(hid_t file, const std::string& name, hid_t type, std::vector<hsize_t> dims) {
  ASSERT_GE(H5Ldelete(file, name.c_str(), H5P_DEFAULT), 0);
  const h5::Id space{H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose};
  const h5::Id creation{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
  H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY);
  const h5::Id dataset{H5Dcreate2(file, name.c_str(), type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                       H5Dclose};
  ASSERT_TRUE(dataset) << name;
  add_text(file, name.c_str(), shard::kChecksumAttribute, std::string(32, '0'));
}

// Gives one scale another value, and its tensor the checksum that belongs to it.
inline void set_scale(const std::filesystem::path& folder, const std::string& name, size_t index, float value) {
  const ShardSet shards = ShardSet::open(folder);
  const ShardTensor& scale = shards.find(name);
  const std::filesystem::path path = shards.files()[scale.file].path();
  std::string file = read_bytes(path);
  convert(DType::kF32, &value, scale.dtype, file.data() + scale.offset + index * size_bytes(scale.dtype), 1);
  const std::string checksum = checksum_of(file.substr(scale.offset, scale.bytes));
  write_bytes(path, file);
  edit_shard(path, [&](hid_t edited) { set_text(edited, name, shard::kChecksumAttribute, checksum); });
}

// The golden case tiny-dense, split into three shards.
class ThreeShardsTest : public testing::Test {
 protected:
  static std::vector<LayerRange> stages() { return explicit_partition(5, {2, 1, 2}); }
  void SetUp() override { split("tiny-dense", shards(), stages()); }
  std::filesystem::path shards() const { return folder_ / "shards"; }
  std::filesystem::path stage(int64_t number) const { return shards() / shard::file_name(number, 3); }
  void expect_refused(const std::vector<std::string>& parts, ExitCode code = ExitCode::kData) const {
    expect_error([&] { ShardSet::open(shards()); }, code, parts);
  }

  TemporaryFolder folder_;
};

}  // namespace lfm2::test
