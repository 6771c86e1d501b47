// What the program refuses, as its users see it: an exit code, one line that names the cause, no ranks and no files
// left.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "base/json/json.h"
#include "stage/hdf5/h5.h"
#include "stage/shards/shard_format.h"
#include "stage/shards/shard_reader.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/shard_edits.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

constexpr double kMaxRefusalSeconds = 5;
constexpr double kGpuStartSeconds = 15;  // CUDA takes seconds to start on a machine with several GPUs

double max_refusal_seconds() { return kMaxRefusalSeconds + (on_gpus() ? kGpuStartSeconds : 0); }

class RefusalTest : public testing::Test {
 protected:
  RefusalTest() {
    std::filesystem::copy(golden_shards("tiny-moe", 4), shards(), std::filesystem::copy_options::recursive);
  }

  std::filesystem::path shards() const { return folder_ / "shards"; }
  std::filesystem::path shard(int stage) const { return shards() / shard::file_name(stage, 4); }
  std::string golden() const { return golden_dir() / "tiny-moe" / "golden.h5"; }

  void flip_byte(const std::filesystem::path& path, uint64_t offset) const {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }

  void write_input(const std::string& text) const { std::ofstream(folder_ / "in.jsonl") << text; }

  // Runs with an output file, and expects neither the file nor anything beside it afterwards.
  void expect_refused(int code, const std::vector<std::string>& reasons, std::vector<std::string> arguments = {},
                      int ranks = 4) {
    const std::filesystem::path results = folder_ / "results";
    std::filesystem::create_directory(results);
    const auto add_unless_given = [&](const std::string& option, const std::string& value) {
      if (std::find(arguments.begin(), arguments.end(), option) == arguments.end())
        arguments.insert(arguments.end(), {option, value});
    };
    add_unless_given("--weights", shards());
    add_unless_given("--output", results / "out.h5");
    const Outcome outcome = run_stage(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, code) << outcome.err;
    ASSERT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
    for (const std::string& reason : reasons)
      EXPECT_NE(outcome.error_lines()[0].find(reason), std::string::npos) << outcome.error_lines()[0];
    EXPECT_EQ(outcome.out, "");
    EXPECT_LT(outcome.seconds, max_refusal_seconds());
    EXPECT_TRUE(std::filesystem::is_empty(results));
  }

  TemporaryFolder folder_;
};

// As srun without PMIx starts them, and the mpiexec of another MPI: each would do the whole job.
TEST_F(RefusalTest, RanksThatRunAlone) {
  for (const std::string rank : {"0", "1"})
    for (const std::vector<std::string>& launcher :
         {std::vector<std::string>{"PMI_SIZE=4", "PMI_RANK=" + rank},
          std::vector<std::string>{"SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID=" + rank}}) {
      SCOPED_TRACE(launcher[1]);
      std::vector<std::string> command{"env"};
      command.insert(command.end(), launcher.begin(), launcher.end());
      command.insert(command.end(), {LFM2_STAGE_PROGRAM, "--weights", "/nowhere", "--output", folder_ / "out.h5"});
      const Outcome outcome = run_program(command);
      EXPECT_EQ(outcome.exit_code, 69) << outcome.err;
      EXPECT_EQ(outcome.out, "");
      ASSERT_EQ(outcome.error_lines().size(), rank == "0" ? 1u : 0u) << outcome.err;
      if (rank == "1") continue;
      const std::string line = outcome.error_lines()[0];
      EXPECT_NE(line.find("the launcher started 4 ranks, MPI (Open MPI"), std::string::npos) << line;
      EXPECT_NE(line.find("knows of 1: each would run alone; srun --mpi=pmix"), std::string::npos) << line;
    }
}

TEST_F(RefusalTest, FlippedBitNamesTheTensor) {
  const ShardSet set = ShardSet::open(shards());
  for (const char* name : {"model.embed_tokens.weight", "model.layers.3.feed_forward.experts.5.w2.weight",
                           "model.embedding_norm.weight"}) {
    const ShardTensor& tensor = set.find(name);
    const std::filesystem::path file = set.files()[tensor.file].path();
    flip_byte(file, tensor.offset + tensor.bytes / 2);
    expect_refused(65, {name, "is damaged: checksum", tensor.checksum, file.filename()});
    flip_byte(file, tensor.offset + tensor.bytes / 2);
  }
}

TEST_F(RefusalTest, TruncatedShards) {
  for (int stage : {0, 3}) {
    const auto size = std::filesystem::file_size(shard(stage));
    for (double share : {0.0, 0.3, 0.999}) {
      std::filesystem::copy_file(golden_shards("tiny-moe", 4) / shard::file_name(stage, 4), shard(stage),
                                 std::filesystem::copy_options::overwrite_existing);
      std::filesystem::resize_file(shard(stage), static_cast<uintmax_t>(static_cast<double>(size) * share));
      expect_refused(65, {shard::file_name(stage, 4)});
    }
    std::filesystem::copy_file(golden_shards("tiny-moe", 4) / shard::file_name(stage, 4), shard(stage),
                               std::filesystem::copy_options::overwrite_existing);
  }
}

TEST_F(RefusalTest, MissingStage) {
  std::filesystem::remove(shard(1));
  expect_refused(66, {"stage 1 of 4 is missing", "stage-01-of-04.h5"});
  std::filesystem::remove(shard(3));
  std::filesystem::copy_file(golden_shards("tiny-moe", 4) / shard::file_name(1, 4), shard(1));
  expect_refused(66, {"stage 3 of 4 is missing", "stage-03-of-04.h5"});
}

TEST_F(RefusalTest, ShardsOfAnotherModelOrSchema) {
  std::filesystem::copy_file(golden_shards("mini-24", 4) / shard::file_name(2, 4), shard(2),
                             std::filesystem::copy_options::overwrite_existing);
  expect_refused(65, {"stage-02-of-04.h5", "shards of different splits"});
  std::filesystem::copy_file(golden(), shard(2), std::filesystem::copy_options::overwrite_existing);
  expect_refused(65, {"stage-02-of-04.h5", "no shard"});
}

TEST_F(RefusalTest, MissingUnreadAndMisshapenTensors) {
  const auto edit = [&](const std::function<void(hid_t)>& change) {
    std::filesystem::copy(golden_shards("tiny-moe", 4), shards(),
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
    const h5::Id file{H5Fopen(shard(1).c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose};
    change(file.get());
  };
  const char* name = "model.layers.2.operator_norm.weight";
  edit([&](hid_t file) { H5Ldelete(file, name, H5P_DEFAULT); });
  expect_refused(65, {name, "is missing", "[64]"});
  edit([&](hid_t file) { H5Lmove(file, name, file, "model.layers.2.other.weight", H5P_DEFAULT, H5P_DEFAULT); });
  expect_refused(65, {name, "is missing"});
  edit([&](hid_t file) { H5Lcreate_hard(file, name, file, "model.layers.2.stray.weight", H5P_DEFAULT, H5P_DEFAULT); });
  expect_refused(65, {"model.layers.2.stray.weight", "overlap", name});
  edit([&](hid_t file) { H5Lcreate_soft(name, file, "model.layers.2.soft.weight", H5P_DEFAULT, H5P_DEFAULT); });
  expect_refused(65, {"model.layers.2.soft.weight", "soft or external link"});
  edit([&](hid_t file) {
    H5Ldelete(file, name, H5P_DEFAULT);
    H5Lcreate_hard(file, "model.layers.2.self_attn.q_layernorm.weight", file, name, H5P_DEFAULT, H5P_DEFAULT);
  });
  expect_refused(65, {name, "overlap", "model.layers.2.self_attn.q_layernorm.weight"});
}

// Before weights are read: the first of them is damaged, and is not what is refused.
TEST_F(RefusalTest, Fp8ScalesBeforeWeights) {
  const std::string weight = "model.layers.3.feed_forward.experts.2.w2.weight", scale = weight + "_scale";
  const std::filesystem::path fp8 = folder_ / "fp8", last = fp8 / shard::file_name(1, 2);
  const auto copy = [&] {
    std::filesystem::remove_all(fp8);
    std::filesystem::copy(golden_shards("tiny-fp8-channel", 2), fp8, std::filesystem::copy_options::recursive);
    const ShardSet set = ShardSet::open(fp8);
    flip_byte(fp8 / shard::file_name(0, 2), set.find("model.embed_tokens.weight").offset);
  };
  struct Bad {
    float value;
    std::string text;
    const char* dtype;
    int ranks;
  };
  for (const Bad& bad : {Bad{std::nanf(""), "nan", "auto", 2}, Bad{0.0f, "0", "fp8", 1}, Bad{-0.5f, "-0.5", "bf16", 2},
                         Bad{HUGE_VALF, "inf", "fp32", 1}}) {
    SCOPED_TRACE(bad.text);
    copy();
    set_scale(fp8, scale, 3, bad.value);
    expect_refused(65, {last, "scale " + scale + " is " + bad.text + " at [3, 0], expected a finite number above 0"},
                   {"--weights", fp8, "--dtype", bad.dtype}, bad.ranks);
  }
  copy();
  edit_shard(last, [&](hid_t file) { H5Ldelete(file, scale.c_str(), H5P_DEFAULT); });
  expect_refused(65, {"tensor " + scale + " is missing, expected shape [128, 1]"}, {"--weights", fp8}, 2);
  copy();
  edit_shard(last, [&](hid_t file) { replace_dataset(file, scale, H5T_IEEE_F32LE, {1, 128}); });
  expect_refused(65, {last, scale, "has shape [1, 128], expected [128, 1]"}, {"--weights", fp8}, 2);
  copy();
  expect_refused(65, {"model.embed_tokens.weight", "is damaged"}, {"--weights", fp8}, 2);
}

// A scheme that is not computed, in the configuration that shards keep.
TEST_F(RefusalTest, Fp8Schemes) {
  const std::filesystem::path fp8 = folder_ / "fp8";
  std::filesystem::copy(golden_shards("tiny-fp8-channel", 1), fp8, std::filesystem::copy_options::recursive);
  const std::string config = ShardSet::open(fp8).config_text(), key = "quantization_config.config_groups.group_0.";
  for (const auto& [path, value] : std::map<std::string, Json>{{"input_activations/dynamic", false},
                                                               {"input_activations/strategy", "tensor"},
                                                               {"weights/num_bits", 4},
                                                               {"weights/strategy", "tensor"}}) {
    Json changed = parse_json(config, "config");
    changed[Json::json_pointer("/quantization_config/config_groups/group_0/" + path)] = value;
    edit_shard(fp8 / shard::file_name(0, 1),
               [&](hid_t file) { set_text(file, "/", shard::kConfigAttribute, json_text(changed)); });
    std::string name = key + path;
    std::replace(name.begin(), name.end(), '/', '.');
    expect_refused(65, {"stage-00-of-01.h5", name + "\" is " + json_text(value), "nothing else is computed"},
                   {"--weights", fp8}, 2);
  }
}

TEST_F(RefusalTest, Fp8OfShardsThatHoldNone) {
  for (const int ranks : {1, 4})
    expect_refused(64,
                   {"--dtype fp8: " + shards().string() + " holds weights in fp32, expected fp8",
                    "weights-tools quantize MODEL --to fp8 --out MODEL-FP8", "weights-tools split MODEL-FP8"},
                   {"--dtype", "fp8"}, ranks);
}

TEST_F(RefusalTest, BadInputs) {
  const std::string input = folder_ / "in.jsonl";
  write_input("{\"input_ids\": [1, 256]}\n");
  expect_refused(65, {"in.jsonl: line 1", "256", "0 to 255"}, {"--input", input});
  write_input("");
  expect_refused(65, {"in.jsonl", "no samples"}, {"--input", input});
  std::string long_line = "{\"input_ids\": [1";
  for (int i = 0; i < 4096; ++i) long_line += ",1";
  write_input(long_line + "]}\n");
  expect_refused(65, {"line 1", "4097 tokens", "max_position_embeddings = 4096"}, {"--input", input});
  expect_refused(65, {"--length 5000", "max_position_embeddings = 4096"}, {"--length", "5000"});
  expect_refused(66, {"nowhere.bin"}, {"--input", folder_ / "nowhere.bin"});
  expect_refused(66, {"nowhere.bin"}, {"--input", golden(), "--reference", folder_ / "nowhere.bin"});
}

TEST_F(RefusalTest, Ranks) {
  expect_refused(64, {"1 ranks for --replicas 2"}, {"--replicas", "2"}, 1);
  expect_refused(64, {"3 ranks for --replicas 2"}, {"--replicas", "2"}, 3);
  expect_refused(69, {"9 ranks for the 8 layers"}, {}, 9);
  expect_refused(64, {"--layers names 2 stages", "4 ranks"}, {"--layers", "4,4"});
  expect_refused(64, {"--layers 4,2,1,2", "8 layers"}, {"--layers", "4,2,1,2"});
  expect_refused(64, {"--virtual-stages 3 with 4 ranks", "12 pieces for 8 layers", "at most 2"},
                 {"--virtual-stages", "3"});
  expect_refused(64, {"--virtual-stages 2 with one rank"}, {"--virtual-stages", "2"}, 1);
  expect_refused(64, {"--virtual-stages 2 with one rank"}, {"--virtual-stages", "2", "--replicas", "4"});
  expect_refused(64, {"--layers names 4 stages, expected 2 for each of the 4 ranks"},
                 {"--virtual-stages", "2", "--layers", "2,2,2,2"});
}

TEST_F(RefusalTest, Usage) {
  expect_refused(64, {"--no-such-option"}, {"--no-such-option"});
  expect_refused(64, {"--dtype"}, {"--dtype", "int4"});
  expect_refused(66, {"no/such/shards"}, {"--weights", "no/such/shards"});
}

TEST_F(RefusalTest, Weights) {
  std::filesystem::create_directory(folder_ / "empty");
  expect_refused(66, {"empty", "no .h5 file"}, {"--weights", folder_ / "empty"});
  std::ofstream(folder_ / "empty/model.safetensors") << "x";
  expect_refused(65, {"empty: is a Hugging Face model", "weights-tools split"}, {"--weights", folder_ / "empty"});
}

// A build without CUDA, or no visible GPU.
TEST_F(RefusalTest, NoGpu) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  expect_refused(69, {"--device cuda"}, {"--device", "cuda"});
  expect_refused(69, {"--transport nccl"}, {"--transport", "nccl"});
  expect_refused(69, {"--transport peer"}, {"--transport", "peer"});
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(RefusalTest, TwoRanksOfNcclOnOneGpu) {
  if (!on_gpus()) GTEST_SKIP() << "needs a GPU (LFM2_TEST_MACHINE)";
  expect_refused(69, {"--transport nccl", "NCCL needs one for each rank"}, {"--device", "cuda", "--transport", "nccl"},
                 8);
}

TEST_F(RefusalTest, GpuOutOfMemory) {
  if (!on_gpus()) GTEST_SKIP() << "needs a GPU (LFM2_TEST_MACHINE)";
  expect_refused(69, {"is out of memory", "GB free"},
                 {"--device", "cuda", "--samples", "40000", "--length", "4096", "--micro-batch", "40000"}, 1);
}

TEST_F(RefusalTest, UnwritableOutput) {
  expect_refused(73, {"no/such/folder/out.h5"}, {"--output", folder_ / "no/such/folder/out.h5"});
  std::filesystem::create_directory(folder_ / "folder.h5");
  expect_refused(73, {"folder.h5", "is a folder"}, {"--output", folder_ / "folder.h5"});
}

// A file system of one megabyte, for users who may mount one.
TEST_F(RefusalTest, FullDisk) {
  const std::filesystem::path small = folder_ / "small";
  std::filesystem::create_directory(small);
  if (mount("none", small.c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "no right to mount a small file system";
  for (const char* name : {"out.bin", "out.h5", "out.jsonl"}) {
    const Outcome outcome =
        run_stage(3, {"--weights", shards(), "--samples", "4096", "--length", "2", "--output", small / name});
    EXPECT_EQ(outcome.exit_code, 74) << outcome.err;
    ASSERT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
    EXPECT_NE(outcome.error_lines()[0].find(name), std::string::npos) << outcome.error_lines()[0];
    EXPECT_NE(outcome.error_lines()[0].find("No space left on device"), std::string::npos) << outcome.error_lines()[0];
    EXPECT_LT(outcome.seconds, max_refusal_seconds());
    // Lines are finished one by one, so those that still found room are kept.
    EXPECT_FALSE(std::filesystem::exists(small / name));
    for (const auto& entry : std::filesystem::directory_iterator(small)) {
      EXPECT_TRUE(std::string(name) == "out.jsonl" && entry.path().string().find("out.jsonl.") != std::string::npos);
      std::filesystem::remove(entry.path());
    }
  }
  umount(small.c_str());
}

}  // namespace
}  // namespace lfm2::test
