// A small shard, byte by byte: no changed byte and no other length goes unnoticed.
#include <fstream>
#include <random>

#include "support/shard_edits.h"
#include "weights-tools/commands/commands.h"

#if defined(__SANITIZE_ADDRESS__)
// HDF5 1.10 leaks memory where it meets damaged metadata, here hundreds of times.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }
#endif

namespace lfm2::test {
namespace {

namespace fs = std::filesystem;

// A model whose shards have a few thousand bytes, with everything that a shard can hold and one aligned tensor.
constexpr const char* kSmallConfig = R"({"model_type": "lfm2", "vocab_size": 130, "hidden_size": 8,
  "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "num_attention_heads": 2,
  "num_key_value_heads": 1, "intermediate_size": 8, "block_auto_adjust_ff_dim": false, "conv_bias": true,
  "max_position_embeddings": 64})";

struct SmallShard {
  explicit SmallShard(const fs::path& folder) {
    write_bytes(folder / "config.json", kSmallConfig);
    const Console quiet{.progress = ProgressMode::kOff, .quiet = true};
    SynthOptions synth;
    synth.config = folder / "config.json";
    synth.out = folder / "model.safetensors";
    synth.dtype = "fp32";
    run_synth(synth, quiet);
    SplitOptions cut;
    cut.model = synth.out;
    cut.out = folder / "shards";
    cut.stages = 1;
    run_split(cut, quiet);
    shards = folder / "shards";
    file = shards / shard::file_name(0, 1);
    bytes = read_bytes(file);
  }
  void set(size_t at, char value) const {
    std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(value);
  }

  fs::path shards, file;
  std::string bytes;
};

// The tensor whose bytes include `at`; nothing for metadata and gaps.
const ShardTensor* tensor_at(const ShardSet& shards, size_t at) {
  for (const ShardTensor& tensor : shards.tensors())
    if (at >= tensor.offset && at < tensor.offset + tensor.bytes) return &tensor;
  return nullptr;
}

TEST(ShardBytesTest, EveryChangedByteIsFoundBeforeItsFirstUseAndNamed) {
  const TemporaryFolder folder;
  const SmallShard shard(folder.path());
  const ShardSet good = ShardSet::open(shard.shards);
  std::mt19937 random(7);
  size_t in_tensors = 0, in_metadata = 0, in_gaps = 0;
  for (size_t at = 0; at < shard.bytes.size(); ++at) {
    shard.set(at, static_cast<char>(shard.bytes[at] ^ (1 << random() % 8)));
    std::string message;
    const ShardTensor* tensor = tensor_at(good, at);
    try {
      const ShardSet damaged = ShardSet::open(shard.shards);
      if (tensor != nullptr) read_tensor(damaged, damaged.find(tensor->spec.name));
    } catch (const Error& error) {
      message = error.what();
      ASSERT_EQ(error.code(), ExitCode::kData) << at << ": " << message;
    }
    ASSERT_NE(message, "") << "a changed byte was not found: " << at;
    ASSERT_NE(message.find(shard.file.filename().string()), std::string::npos) << at << ": " << message;
    if (tensor != nullptr) {
      ++in_tensors;
      ASSERT_NE(message.find("tensor " + tensor->spec.name + " is damaged"), std::string::npos) << at << message;
    } else {
      (message.find("belongs to nothing") != std::string::npos ? in_gaps : in_metadata) += 1;
      const bool named = message.find("metadata: ") != std::string::npos || message.find("HDF5: ") != std::string::npos;
      ASSERT_TRUE(named) << at << ": " << message;
    }
    shard.set(at, shard.bytes[at]);
  }
  EXPECT_GT(in_tensors, 4000u);
  EXPECT_GT(in_metadata, 4000u);
  EXPECT_GT(in_gaps, 100u);
  RecordProperty("in_tensors", static_cast<int>(in_tensors));
  RecordProperty("in_metadata", static_cast<int>(in_metadata));
  RecordProperty("in_gaps", static_cast<int>(in_gaps));
}

TEST(ShardBytesTest, EveryLengthButTheRightOneIsRefused) {
  const TemporaryFolder folder;
  const SmallShard shard(folder.path());
  for (size_t size = 0; size < shard.bytes.size(); size += size < 64 ? 1 : 61) {
    fs::resize_file(shard.file, size);
    expect_error([&] { ShardSet::open(shard.shards); }, ExitCode::kData, {shard.file.filename().string()});
    write_bytes(shard.file, shard.bytes);
  }
  write_bytes(shard.file, shard.bytes + std::string(100, '\0') + "appended");
  expect_error([&] { ShardSet::open(shard.shards); }, ExitCode::kData, {"metadata", "belongs to nothing"});
  fs::resize_file(shard.file, uint64_t{1} << 40);  // one large hole
  expect_error([&] { ShardSet::open(shard.shards); }, ExitCode::kData, {"metadata", "belong to nothing"});
}

// Shards that are older than the attribute can be read, and their gaps are not checked.
TEST(ShardBytesTest, ShardsWithoutTheGapsAttributeStayReadable) {
  const TemporaryFolder folder;
  const SmallShard shard(folder.path());
  edit_shard(shard.file, [](hid_t file) { remove_attribute(file, "/", shard::kGapsAttribute); });
  const std::string bytes = read_bytes(shard.file);
  write_bytes(shard.file, bytes + "appended");
  EXPECT_EQ(ShardSet::open(shard.shards).tensors().size(), open_model(folder / "model.safetensors")->tensors().size());
}

}  // namespace
}  // namespace lfm2::test
