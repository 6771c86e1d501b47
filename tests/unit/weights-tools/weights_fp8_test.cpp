// Checkpoints with fp8 in every form that libraries write: each comes back from shards as it was, and files in which
// weights, scales and configuration disagree are refused before a tensor is read.
#include <functional>

#include "base/json/json.h"
#include "support/fp8_checkpoints.h"
#include "weights-tools/commands/stages.h"
#include "weights-tools/formats/shard_writer.h"
#include "weights-tools/model/copy.h"

namespace lfm2 {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::find_tensor;
using test::fp8_tensors;
using test::golden_dir;
using test::HandTensor;
using test::TemporaryFolder;

using HandTensors = std::vector<HandTensor>;
using Fp8Change = std::function<void(HandTensors&)>;

const std::string kFp8Experts = "model.layers.1.feed_forward.experts.";
const std::string kFp8Dense = "model.layers.0.feed_forward.";

void copy_quietly(const ModelSource& source, ModelWriter& writer) {
  Progress progress("copy", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  copy_model(source, writer, progress);
}

void split_fp8(const fs::path& model, const fs::path& out, int64_t stages) {
  const auto source = open_model(model);
  ShardWriter writer(*source, equal_partition(source->config().layers, stages), {}, out, false);
  copy_quietly(*source, writer);
}

// The checkpoint that comes back from shards of `model`.
HandTensors there_and_back(const fs::path& model, const fs::path& work, int64_t stages) {
  split_fp8(model, work / "shards", stages);
  const auto shards = open_shards(work / "shards");
  const auto writer = create_model(*shards, work / "back", false);
  copy_quietly(*shards, *writer);
  EXPECT_EQ(test::read_bytes(work / "back/config.json"), shards->config_text());
  return test::read_safetensors(work / "back/model.safetensors");
}

void write_changed_fp8(const fs::path& folder, const std::string& golden_case, const Fp8Change& change) {
  HandTensors tensors = fp8_tensors(golden_case);
  change(tensors);
  test::write_folder(folder, golden_case, tensors);
}

void erase_junk(HandTensors& tensors) {
  for (const std::string matrix : {"w1", "w3", "w2"})
    test::take_tensor(tensors, kFp8Dense + matrix + ".weight_scale_inv");
  for (const std::string matrix : {"k_proj", "v_proj"})
    test::take_tensor(tensors, "model.layers.1.self_attn." + matrix + ".weight_scale_inv");
}

TEST(Fp8CheckpointTest, ComesBackAsItWas) {
  for (const std::string& name : test::kFp8Cases) {
    HandTensors expected = fp8_tensors(name);
    const bool junk = name == "tiny-fp8-hf";
    if (junk) erase_junk(expected);
    for (int64_t stages = 1; stages <= 3; ++stages) {
      SCOPED_TRACE(fmt::format("{} in {} stages", name, stages));
      const TemporaryFolder folder;
      test::expect_same_tensors(there_and_back(golden_dir() / name, folder.path(), stages), expected);
      const bool same_file = test::read_bytes(folder / "back/model.safetensors") ==
                             test::read_bytes(golden_dir() / name / "model.safetensors");
      EXPECT_EQ(same_file, !junk);
    }
  }
}

TEST(Fp8CheckpointTest, LeavesOutScalesOfOtherWeights) {
  const auto model = open_model(golden_dir() / "tiny-fp8-hf");
  const std::vector<std::string> expected = {
      kFp8Dense + "w1.weight_scale_inv", kFp8Dense + "w3.weight_scale_inv", kFp8Dense + "w2.weight_scale_inv",
      "model.layers.1.self_attn.k_proj.weight_scale_inv", "model.layers.1.self_attn.v_proj.weight_scale_inv"};
  EXPECT_EQ(model->left_out(), expected);
  EXPECT_TRUE(open_model(golden_dir() / "tiny-fp8-block")->left_out().empty());
}

// Scales follow their weights, under one name and with one shape whatever the checkpoint has.
TEST(Fp8CheckpointTest, GivesEachWeightItsScales) {
  for (const std::string& name : test::kFp8Cases) {
    const auto model = open_model(golden_dir() / name);
    const bool channel = model->config().quantization.scheme == Quantization::Scheme::kChannel;
    size_t weights = 0;
    for (size_t i = 0; i < model->tensors().size(); ++i) {
      const SourceTensor& weight = model->tensors()[i];
      if (weight.dtype != DType::kF8) continue;
      ++weights;
      const SourceTensor& scale = model->tensors().at(i + 1);
      EXPECT_EQ(scale.spec.name, weight.spec.name + "_scale");
      const auto blocks = [](uint64_t extent) { return (extent + 127) / 128; };
      const std::vector<uint64_t> dims =
          channel ? std::vector<uint64_t>{weight.spec.dims[0], 1}
                  : std::vector<uint64_t>{blocks(weight.spec.dims[0]), blocks(weight.spec.dims[1])};
      EXPECT_EQ(scale.spec.dims, dims) << scale.spec.name;
      EXPECT_EQ(scale.dtype, name == "tiny-fp8-hf" ? DType::kF32 : DType::kBf16);
    }
    EXPECT_GT(weights, 20u);
  }
}

// Other names of the same tensors: the model is the same, and each comes back under its own name.
TEST(Fp8CheckpointTest, ReadsOtherNames) {
  struct Case {
    std::string golden_case;
    Fp8Change change;
  };
  const std::vector<Case> cases = {
      {"tiny-fp8-channel",
       [](HandTensors& t) {
         for (const std::string ending : {"weight", "weight_scale"})
           for (const auto& [from, to] : {std::pair{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}})
             test::rename_endings(t, fmt::format(".{}.{}", from, ending), fmt::format(".{}.{}", to, ending));
       }},
      {"tiny-fp8-block", [](HandTensors& t) { test::rename_endings(t, "weight_scale", "weight_scale_inv"); }},
      {"tiny-fp8-block",
       [](HandTensors& t) {
         for (const std::string ending : {"weight", "weight_scale"})
           for (const int expert : {0, 1, 2})
             for (const auto& [from, to] : {std::pair{"w1", "gate_proj"}, {"w3", "up_proj"}, {"w2", "down_proj"}})
               test::rename_endings(t, fmt::format("experts.{}.{}.{}", expert, from, ending),
                                    fmt::format("experts.{}.{}.{}", expert, to, ending));
       }},
      {"tiny-fp8-hf",  // weights together as well as scales
       [](HandTensors& t) {
         for (const int layer : {1, 2}) {
           const std::string experts = fmt::format("model.layers.{}.feed_forward.experts.", layer);
           std::vector<std::string> gate_up, down;
           for (const int expert : {0, 1, 2}) {
             for (const std::string matrix : {"w1", "w3"})
               gate_up.push_back(fmt::format("{}{}.{}.weight", experts, expert, matrix));
             down.push_back(fmt::format("{}{}.w2.weight", experts, expert));
           }
           test::join_tensors(t, gate_up, experts + "gate_up_proj", {3, 512, 128});
           test::join_tensors(t, down, experts + "down_proj", {3, 128, 256});
         }
       }},
      {"tiny-fp8-hf",  // scales apart
       [](HandTensors& t) {
         for (const int layer : {1, 2}) {
           const std::string experts = fmt::format("model.layers.{}.feed_forward.experts.", layer);
           const HandTensor gate_up = test::take_tensor(t, experts + "gate_up_proj_scale_inv");
           const HandTensor down = test::take_tensor(t, experts + "down_proj_scale_inv");
           for (size_t expert = 0; expert < 3; ++expert) {
             const auto add = [&](const std::string& matrix, std::vector<uint64_t> dims, const std::string& bytes) {
               t.push_back({fmt::format("{}{}.{}.weight_scale_inv", experts, expert, matrix), "F32", dims, bytes});
             };
             add("w1", {2, 1}, gate_up.bytes.substr(16 * expert, 8));
             add("w3", {2, 1}, gate_up.bytes.substr(16 * expert + 8, 8));
             add("w2", {1, 2}, down.bytes.substr(8 * expert, 8));
           }
         }
       }}};
  for (const Case& tested : cases) {
    SCOPED_TRACE(&tested - cases.data());
    const TemporaryFolder folder;
    write_changed_fp8(folder / "m", tested.golden_case, tested.change);
    test::expect_same_model(*open_model(folder / "m"), *open_model(golden_dir() / tested.golden_case));
    HandTensors expected = fp8_tensors(tested.golden_case);
    tested.change(expected);
    if (tested.golden_case == "tiny-fp8-hf") erase_junk(expected);
    test::expect_same_tensors(there_and_back(folder / "m", folder.path(), 2), expected);
  }
}

void change_dtype(HandTensors& tensors, const std::string& name, const std::string& dtype, size_t bytes) {
  HandTensor& tensor = find_tensor(tensors, name);
  tensor.dtype = dtype;
  tensor.bytes.resize(numel(tensor.dims) * bytes);
}

TEST(Fp8CheckpointTest, RefusesWhatDisagrees) {
  const std::string w1 = kFp8Dense + "w1.weight", scale = w1 + "_scale";
  struct Case {
    std::string golden_case;
    Fp8Change change;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {"tiny-fp8-block", [&](HandTensors& t) { test::take_tensor(t, scale); }, {scale, "missing", "[2, 2]", w1}},
      {"tiny-fp8-block",
       [&](HandTensors& t) {
         find_tensor(t, scale).dims = {4, 1};
       },
       {scale, "[4, 1]", "[2, 2]"}},
      {"tiny-fp8-channel", [&](HandTensors& t) { find_tensor(t, scale).dims = {192}; }, {scale, "[192]", "[192, 1]"}},
      {"tiny-fp8-block", [&](HandTensors& t) { change_dtype(t, scale, "F16", 2); }, {scale, "fp16", "fp32 or bf16"}},
      {"tiny-fp8-block", [&](HandTensors& t) { change_dtype(t, scale, "F8_E4M3", 1); }, {scale, "fp8", "fp32 or bf16"}},
      {"tiny-fp8-block",
       [&](HandTensors& t) {
         t.push_back({scale + "_inv", "F32", {2, 2}, std::string(16, '\1')});
       },
       {scale, scale + "_inv", "both"}},
      {"tiny-fp8-block",
       [](HandTensors& t) { change_dtype(t, "model.embed_tokens.weight", "F8_E4M3", 1); },
       {"model.embed_tokens.weight", "fp8", "projections"}},
      {"tiny-fp8-block",
       [](HandTensors& t) { change_dtype(t, "model.layers.1.feed_forward.gate.weight", "F8_E4M3", 1); },
       {"feed_forward.gate.weight", "fp8", "projections"}},
      {"tiny-fp8-block",
       [&](HandTensors& t) { change_dtype(t, kFp8Dense + "w3.weight", "BF16", 2); },
       {kFp8Dense + "w1.weight", kFp8Dense + "w3.weight", "one type"}},
      {"tiny-fp8-block",
       [](HandTensors& t) { change_dtype(t, kFp8Experts + "2.w2.weight", "BF16", 2); },
       {kFp8Experts + "0.w2.weight", kFp8Experts + "2.w2.weight", "one type"}},
      {"tiny-fp8-channel",
       [](HandTensors& t) { change_dtype(t, kFp8Experts + "1.up_proj.weight", "BF16", 2); },
       {kFp8Experts + "0.w1.weight", kFp8Experts + "1.w3.weight", "one type"}},
      {"tiny-fp8-channel",
       [](HandTensors& t) {
         t.push_back({kFp8Experts + "0.w1.weight", "BF16", {96, 128}, std::string(96 * 128 * 2, '\0')});
       },
       {kFp8Experts + "0.gate_proj.weight", kFp8Experts + "0.w1.weight", "both"}},
      {"tiny-fp8-block",
       [&](HandTensors& t) {
         t.push_back({kFp8Dense + "w1.input_scale", "F32", {1}, std::string(4, '\1')});
       },
       {kFp8Dense + "w1.input_scale", "no part"}},
      {"tiny-fp8-hf",
       [](HandTensors& t) {
         find_tensor(t, kFp8Experts + "gate_up_proj_scale_inv").dims = {3, 2, 2};
       },
       {kFp8Experts + "gate_up_proj_scale_inv", "[3, 2, 2]", "[3, 4, 1]"}},
      {"tiny-fp8-hf",
       [](HandTensors& t) { test::take_tensor(t, kFp8Experts + "down_proj_scale_inv"); },
       {kFp8Experts + "0.w2.weight_scale", "missing"}}};
  for (const Case& tested : cases) {
    SCOPED_TRACE(&tested - cases.data());
    const TemporaryFolder folder;
    write_changed_fp8(folder / "m", tested.golden_case, tested.change);
    expect_error([&] { open_model(folder / "m"); }, ExitCode::kData, tested.parts);
  }
}

// A row of scales would belong to the last gate rows and the first up rows.
TEST(Fp8CheckpointTest, RefusesScalesThatGateAndUpShare) {
  const TemporaryFolder folder;
  HandTensors tensors = fp8_tensors("tiny-fp8-hf");
  for (HandTensor& tensor : tensors) {
    if (tensor.name.find("experts.") == std::string::npos || !tensor.name.ends_with(".weight")) continue;
    for (uint64_t& extent : tensor.dims)
      if (extent == 256) extent = 192;
    tensor.bytes.resize(numel(tensor.dims));
  }
  for (const int layer : {1, 2}) {
    HandTensor& scales =
        find_tensor(tensors, fmt::format("model.layers.{}.feed_forward.experts.gate_up_proj_scale_inv", layer));
    scales.dims = {3, 3, 1};
    scales.bytes.resize(36);
  }
  test::write_folder(folder / "m", "tiny-fp8-hf", tensors);
  OrderedJson json = OrderedJson::parse(test::read_bytes(folder / "m/config.json"));
  json["moe_intermediate_size"] = 192;
  test::write_bytes(folder / "m/config.json", json.dump());
  expect_error([&] { open_model(folder / "m"); }, ExitCode::kData,
               {kFp8Experts + "gate_up_proj_scale_inv", "gate and up", "192"});
}

TEST(Fp8CheckpointTest, RefusesFp8ThatTheConfigurationDenies) {
  const TemporaryFolder folder;
  test::write_folder(folder / "m", "tiny-fp8-channel", fp8_tensors("tiny-fp8-channel"));
  const OrderedJson json = OrderedJson::parse(test::read_bytes(folder / "m/config.json"));
  for (const std::string& module : {kFp8Dense + "w1", kFp8Experts + "1.up_proj", kFp8Experts + "1.w3"}) {
    OrderedJson changed = json;
    changed["quantization_config"]["ignore"].push_back(module);
    test::write_bytes(folder / "m/config.json", changed.dump());
    expect_error([&] { open_model(folder / "m"); }, ExitCode::kData, {"is fp8", module, "not quantised"});
  }
  OrderedJson changed = json;
  changed.erase("quantization_config");
  test::write_bytes(folder / "m/config.json", changed.dump());
  expect_error([&] { open_model(folder / "m"); }, ExitCode::kData, {"is fp8", "no quantization_config"});
}

// Scales are looked at when they are read: a weight times such a scale is no weight.
TEST(Fp8CheckpointTest, RefusesScalesThatAreNotPositiveAndFinite) {
  for (const auto& [bits, text] : {std::pair{uint16_t{0x7fc0}, "nan"},
                                   {uint16_t{0}, "0"},
                                   {uint16_t{0x8000}, "-0"},
                                   {uint16_t{0xbf80}, "-1"},
                                   {uint16_t{0x7f80}, "inf"}}) {
    const TemporaryFolder folder;
    const std::string name = "model.layers.1.self_attn.q_proj.weight_scale";
    write_changed_fp8(folder / "m", "tiny-fp8-block", [&](HandTensors& tensors) {
      std::memcpy(find_tensor(tensors, name).bytes.data() + 2 * 2, &bits, 2);
    });
    expect_error([&] { split_fp8(folder / "m", folder / "shards", 2); }, ExitCode::kData,
                 {name + " is " + text, "at [1, 0]", "positive"});
    EXPECT_TRUE(!fs::exists(folder / "shards") || test::file_names(folder / "shards").empty());
  }
}

}  // namespace
}  // namespace lfm2
