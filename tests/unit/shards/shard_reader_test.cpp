// Reading shards: what was split comes back, from contiguous and chunked tensors, and damage is found and named.
#include <xxhash.h>

#include <cstring>
#include <map>
#include <random>

#include "stage/hdf5/h5_scan.h"
#include "support/shard_edits.h"

namespace lfm2::test {
namespace {

namespace fs = std::filesystem;

class ShardReaderTest : public ThreeShardsTest {};

TEST_F(ShardReaderTest, ReadsWhatWasSplit) {
  ShardSet shards_read = ShardSet::open(shards());
  const auto model = open_model(golden_dir() / "tiny-dense");
  EXPECT_EQ(shards_read.stages(), stages());
  EXPECT_EQ(shards_read.config(), model->config());
  EXPECT_EQ(shards_read.config_text(), model->config_text());
  EXPECT_EQ(shards_read.total_bytes(), model->total_bytes());
  EXPECT_EQ(shards_read.choose_dtype(std::nullopt), DType::kF32);
  EXPECT_EQ(shards_read.choose_dtype(DType::kBf16), DType::kBf16);
  EXPECT_THROW(shards_read.choose_dtype(DType::kF8), Error);
  EXPECT_EQ(shards_read.split_id().size(), 32u);
  ASSERT_EQ(shards_read.tensors().size(), model->tensors().size());
  for (size_t i = 0; i < model->tensors().size(); ++i) {
    const ShardTensor& tensor = shards_read.tensors()[i];
    EXPECT_EQ(tensor.spec.name, model->tensors()[i].spec.name);
    EXPECT_EQ(&shards_read.find(tensor.spec.name), &tensor);
    const std::string bytes = tensor_bytes(*model, i);
    EXPECT_TRUE(read_tensor(shards_read, tensor) == bytes) << tensor.spec.name;
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    // The form that xxhsum prints.
    EXPECT_EQ(tensor.checksum, fmt::format("{:016x}{:016x}", hash.high64, hash.low64));
  }
  expect_error([&] { shards_read.find("model.nothing"); }, ExitCode::kSoftware, {});
}

// Stores a dataset again as h5repack does: with the same attributes, in compressed chunks.
void store_in_chunks(hid_t file, const std::string& name) {
  const h5::Id old{H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose};
  const h5::Id type{H5Dget_type(old.get()), H5Tclose}, space{H5Dget_space(old.get()), H5Sclose};
  std::vector<hsize_t> dims(static_cast<size_t>(H5Sget_simple_extent_ndims(space.get())));
  H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr);
  std::vector<std::byte> bytes(static_cast<size_t>(H5Dget_storage_size(old.get())));
  ASSERT_GE(H5Dread(old.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()), 0);
  for (hsize_t& extent : dims) extent = extent / 3 + 1;
  const h5::Id creation{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
  H5Pset_chunk(creation.get(), static_cast<int>(dims.size()), dims.data());
  H5Pset_shuffle(creation.get());
  H5Pset_deflate(creation.get(), 1);
  H5Pset_fletcher32(creation.get());
  const h5::Id fresh{H5Dcreate2(file, "fresh", type.get(), space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                     H5Dclose};
  ASSERT_GE(H5Dwrite(fresh.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()), 0);
  const h5::Id attribute{H5Aopen(old.get(), shard::kChecksumAttribute, H5P_DEFAULT), H5Aclose};
  const h5::Id text{H5Aget_type(attribute.get()), H5Tclose};
  std::string checksum(H5Tget_size(text.get()), ' ');
  H5Aread(attribute.get(), text.get(), checksum.data());
  add_text(file, "fresh", shard::kChecksumAttribute, checksum.c_str());
  ASSERT_GE(H5Ldelete(file, name.c_str(), H5P_DEFAULT), 0);
  ASSERT_GE(H5Lmove(file, "fresh", file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT), 0);
}

TEST_F(ShardReaderTest, ChunkedTensorsAreReadThroughHdf5) {
  const ShardSet before = ShardSet::open(shards());
  std::map<std::string, std::string> expected;
  for (const ShardTensor& tensor : before.tensors()) expected[tensor.spec.name] = read_tensor(before, tensor);
  for (int64_t number = 0; number < 3; ++number) {
    const h5::Scan scan = h5::scan(CheckedFile(stage(number)));
    edit_shard(stage(number), [&](hid_t file) {
      for (const auto& [name, dataset] : scan.datasets) store_in_chunks(file, name);
    });
  }
  const ShardSet after = ShardSet::open(shards());
  for (const ShardTensor& tensor : after.tensors()) {
    EXPECT_FALSE(tensor.contiguous) << tensor.spec.name;
    EXPECT_EQ(read_tensor(after, tensor), expected[tensor.spec.name]) << tensor.spec.name;
    std::vector<std::byte> middle(static_cast<size_t>(tensor.bytes) - 3);  // ends inside a row
    after.read(tensor, 2, middle);
    EXPECT_EQ(std::memcmp(middle.data(), expected[tensor.spec.name].data() + 2, middle.size()), 0) << tensor.spec.name;
  }
}

TEST_F(ShardReaderTest, ADamagedChunkNamesTheTensor) {
  edit_shard(stage(0), [&](hid_t file) {
    store_in_chunks(file, kNorm);
    const h5::Id dataset{H5Dopen2(file, kNorm.c_str(), H5P_DEFAULT), H5Dclose};
    const float other = 1;
    const h5::Id memory{H5Screate(H5S_SCALAR), H5Sclose}, space{H5Dget_space(dataset.get()), H5Sclose};
    const hsize_t first = 40, count = 1;
    H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &first, nullptr, &count, nullptr);
    ASSERT_GE(H5Dwrite(dataset.get(), H5T_NATIVE_FLOAT, memory.get(), space.get(), H5P_DEFAULT, &other), 0);
  });
  const ShardSet set = ShardSet::open(shards());
  expect_error([&] { read_tensor(set, set.find(kNorm)); }, ExitCode::kData, {kNorm, "damaged", "stage"});
}

TEST_F(ShardReaderTest, OneChangedBitInAnyTensorIsFoundAndNamed) {
  std::mt19937 random(1);
  const ShardSet good = ShardSet::open(shards());
  for (const ShardTensor& tensor : good.tensors()) {
    const fs::path path = good.files()[tensor.file].path();
    std::string bytes = read_bytes(path);
    const size_t at = tensor.offset + random() % tensor.bytes;
    bytes[at] = static_cast<char>(bytes[at] ^ 1 << random() % 8);
    write_bytes(folder_ / "aside", bytes);
    fs::rename(path, folder_ / "good");
    fs::rename(folder_ / "aside", path);
    const ShardSet damaged = ShardSet::open(shards());
    expect_error([&] { read_tensor(damaged, damaged.find(tensor.spec.name)); }, ExitCode::kData,
                 {path.filename().string(), tensor.spec.name, "damaged"});
    fs::rename(folder_ / "good", path);
  }
}

}  // namespace
}  // namespace lfm2::test
