// What counts as a model: every form, older and fused names, and everything that must be refused.
#include "base/json/json.h"
#include "support/weights_support.h"
#include "weights-tools/model/model_source.h"

namespace lfm2 {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::find_tensor;
using test::golden_dir;
using test::HandTensor;
using test::TemporaryFolder;

const std::string kMoe = "tiny-moe";
const std::string kLayer = "model.layers.2.feed_forward.";

void erase_tensor(std::vector<HandTensor>& tensors, const std::string& name) {
  const size_t before = tensors.size();
  std::erase_if(tensors, [&](const HandTensor& t) { return t.name == name; });
  ASSERT_EQ(tensors.size() + 1, before) << name;
}

// Writes a folder with the golden case's tensors after `change`.
template <class F>
void write_changed(const fs::path& folder, const std::string& golden_case, F&& change) {
  std::vector<HandTensor> tensors = test::golden_tensors(golden_case);
  change(tensors);
  test::write_folder(folder, golden_case, tensors);
}

void set_config(const fs::path& folder, const std::string& key, const OrderedJson& value) {
  OrderedJson json = OrderedJson::parse(test::read_bytes(folder / "config.json"));
  json[key] = value;
  test::write_bytes(folder / "config.json", json.dump());
}

TEST(ModelSourceTest, OpensFileAndFolderAlike) {
  const auto folder = open_model(golden_dir() / kMoe);
  const auto file = open_model(golden_dir() / kMoe / "model.safetensors");
  EXPECT_EQ(folder->form(), "safetensors");
  EXPECT_EQ(folder->config_text(), test::read_bytes(golden_dir() / kMoe / "config.json"));
  test::expect_same_model(*folder, *file);
}

TEST(ModelSourceTest, ReadsAnyPartOfATensor) {
  const auto model = open_model(golden_dir() / kMoe);
  const std::string whole = test::tensor_bytes(*model, 5);
  std::string part(100, '\0');
  model->read(5, 52, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, whole.substr(52, 100));
}

TEST(ModelSourceTest, ReadsFusedExperts) {
  for (const std::string golden_case : {"tiny-moe", "tiny-bf16"}) {
    const TemporaryFolder folder;
    write_changed(folder / "m", golden_case, [](std::vector<HandTensor>& tensors) {
      for (int layer = 2; layer < 8; ++layer) {
        const std::string experts = fmt::format("model.layers.{}.feed_forward.experts.", layer);
        const HandTensor shape = find_tensor(tensors, experts + "0.w1.weight");  // [ffn, hidden]
        HandTensor gate_up{experts + "gate_up_proj", shape.dtype, {8, 2 * shape.dims[0], shape.dims[1]}, {}};
        HandTensor down{experts + "down_proj", shape.dtype, {8, shape.dims[1], shape.dims[0]}, {}};
        for (int expert = 0; expert < 8; ++expert) {
          const std::string prefix = experts + std::to_string(expert);
          gate_up.bytes +=
              find_tensor(tensors, prefix + ".w1.weight").bytes + find_tensor(tensors, prefix + ".w3.weight").bytes;
          down.bytes += find_tensor(tensors, prefix + ".w2.weight").bytes;
          for (const char* name : {".w1.weight", ".w2.weight", ".w3.weight"}) erase_tensor(tensors, prefix + name);
        }
        tensors.push_back(gate_up);
        tensors.push_back(down);
      }
    });
    test::expect_same_model(*open_model(folder / "m"), *open_model(golden_dir() / golden_case));
  }
}

TEST(ModelSourceTest, ReadsTheOtherNameOfTheExpertBias) {
  const TemporaryFolder folder;
  write_changed(folder / "m", kMoe, [](std::vector<HandTensor>& tensors) {
    for (int layer = 2; layer < 8; ++layer)
      find_tensor(tensors, fmt::format("model.layers.{}.feed_forward.expert_bias", layer)).name += ".weight";
  });
  test::expect_same_model(*open_model(folder / "m"), *open_model(golden_dir() / kMoe));
}

TEST(ModelSourceTest, ReadsTheOtherNameOfTheGates) {
  const TemporaryFolder folder;
  const auto rename_all = [](std::vector<HandTensor>& tensors) {
    for (HandTensor& tensor : tensors)
      if (const size_t at = tensor.name.find("gate_proj"); at != std::string::npos)
        tensor.name.replace(at, 9, "g_proj");
  };
  write_changed(folder / "m", "tiny-lfm3", rename_all);
  test::expect_same_model(*open_model(folder / "m"), *open_model(golden_dir() / "tiny-lfm3"));
  write_changed(folder / "both", "tiny-lfm3", [&](std::vector<HandTensor>& tensors) {
    tensors.push_back(find_tensor(tensors, "model.layers.2.self_attn.gate_proj.weight"));
    rename_all(tensors);
    tensors.back().name = "model.layers.2.self_attn.gate_proj.weight";
  });
  expect_error([&] { open_model(folder / "both"); }, ExitCode::kData,
               {"both", "layers.2.self_attn.g_proj", "gate_proj"});
}

TEST(ModelSourceTest, AcceptsATiedHeadOnlyWhereItEqualsTheEmbedding) {
  const TemporaryFolder folder;
  const auto add_head = [](std::vector<HandTensor>& tensors) {
    HandTensor head = find_tensor(tensors, "model.embed_tokens.weight");
    head.name = "lm_head.weight";
    tensors.push_back(head);
  };
  write_changed(folder / "equal", kMoe, add_head);
  test::expect_same_model(*open_model(folder / "equal"), *open_model(golden_dir() / kMoe));
  write_changed(folder / "other", kMoe, [&](std::vector<HandTensor>& tensors) {
    add_head(tensors);
    tensors.back().bytes.back() ^= 1;
  });
  expect_error([&] { open_model(folder / "other"); }, ExitCode::kData, {"other", "lm_head.weight", "tied"});
  set_config(folder / "other", "tie_word_embeddings", false);
  const auto untied = open_model(folder / "other");
  EXPECT_EQ(untied->tensors().back().spec.name, "lm_head.weight");
  set_config(folder / "equal", "tie_word_embeddings", false);
  write_changed(folder / "none", kMoe, [](auto&) {});
  set_config(folder / "none", "tie_word_embeddings", false);
  expect_error([&] { open_model(folder / "none"); }, ExitCode::kData, {"lm_head.weight", "missing"});
}

TEST(ModelSourceTest, RefusesOtherTensorsThanTheModels) {
  struct TensorChange {
    std::string what;
    std::function<void(std::vector<HandTensor>&)> change;
    std::vector<std::string> parts;
  };
  const auto copy_as = [](std::vector<HandTensor>& tensors, const std::string& from, const std::string& to) {
    HandTensor copy = find_tensor(tensors, from);
    copy.name = to;
    tensors.push_back(copy);
  };
  const std::vector<TensorChange> changes = {
      {"missing",
       [](auto& t) { erase_tensor(t, "model.layers.7.ffn_norm.weight"); },
       {"model.layers.7.ffn_norm.weight", "missing", "[64]"}},
      {"unknown",
       [&](auto& t) {
         copy_as(t, "model.layers.7.ffn_norm.weight", "model.layers.8.ffn_norm.weight");
         copy_as(t, "model.layers.7.ffn_norm.weight", "model.layers.9.ffn_norm.weight");
       },
       {"model.layers.8.ffn_norm.weight", "no part of the model", "2 such"}},
      {"wrong shape",
       [](auto& t) {
         find_tensor(t, "model.layers.0.conv.conv.weight").dims = {64, 3, 1};
       },
       {"model.layers.0.conv.conv.weight", "[64, 3, 1]", "[64, 1, 3]"}},
      {"transposed",
       [](auto& t) {
         find_tensor(t, "model.layers.0.feed_forward.w1.weight").dims = {64, 112};
       },
       {"[64, 112]", "[112, 64]"}},
      {"both expert biases",
       [&](auto& t) { copy_as(t, kLayer + "expert_bias", kLayer + "expert_bias.weight"); },
       {"both", "expert_bias.weight"}},
      {"expert alone and fused",
       [](auto& t) {
         t.push_back({kLayer + "experts.down_proj", "F32", {8, 64, 48}, std::string(8 * 64 * 48 * 4, 'x')});
       },
       {"both", "down_proj", "experts.0.w2.weight"}},
      {"fused of wrong shape",
       [](auto& t) {
         t.push_back({kLayer + "experts.gate_up_proj", "F32", {8, 48, 64}, std::string(8 * 64 * 48 * 4, 'x')});
       },
       {"gate_up_proj", "[8, 48, 64]", "[8, 96, 64]"}},
      {"an expert more",
       [&](auto& t) { copy_as(t, kLayer + "experts.7.w1.weight", kLayer + "experts.8.w1.weight"); },
       {"experts.8.w1.weight", "1 such"}},
  };
  for (const TensorChange& c : changes) {
    SCOPED_TRACE(c.what);
    const TemporaryFolder folder;
    write_changed(folder / "m", kMoe, c.change);
    std::vector<std::string> parts = c.parts;
    parts.push_back("/m");
    expect_error([&] { open_model(folder / "m"); }, ExitCode::kData, parts);
  }
}

TEST(ModelSourceTest, NamesWhatIsMissing) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "empty");
  fs::copy_file(golden_dir() / kMoe / "model.safetensors", folder / "m.safetensors");
  test::write_bytes(folder / "notes.txt", "x");
  expect_error([&] { open_model(folder / "absent"); }, ExitCode::kNoInput, {"absent"});
  expect_error([&] { open_model(folder / "empty"); }, ExitCode::kNoInput, {"empty", "model.safetensors"});
  expect_error([&] { open_model(folder / "m.safetensors"); }, ExitCode::kNoInput, {"config.json", "--config"});
  expect_error([&] { open_model(folder / "m.safetensors", folder / "no.json"); }, ExitCode::kNoInput, {"no.json"});
  expect_error([&] { open_model(folder / "notes.txt"); }, ExitCode::kData, {"notes.txt", "expected"});
  EXPECT_NO_THROW(open_model(folder / "m.safetensors", golden_dir() / kMoe / "config.json"));
}

TEST(ModelSourceTest, GivenConfigurationReplacesTheOneBeside) {
  expect_error([&] { open_model(golden_dir() / "tiny-dense", golden_dir() / kMoe / "config.json"); }, ExitCode::kData,
               {"tiny-dense", "expected"});
}

TEST(ModelSourceTest, ModelBinWithoutConfigurationIsTheBigModel) {
  const TemporaryFolder folder;
  std::vector<HandTensor> tensors = test::golden_tensors(kMoe);
  for (HandTensor& tensor : tensors) tensor.name = tensor.name.substr(6);
  test::write_bytes(folder / "model.bin", test::model_bin_text(tensors));
  expect_error([&] { open_model(folder / "model.bin"); }, ExitCode::kData,
               {"model.bin", "lfm2-8b-a1b", "embed_tokens", "[256, 64]", "[65536, 2048]"});
  const auto given = open_model(folder / "model.bin", golden_dir() / kMoe / "config.json");
  EXPECT_EQ(given->form(), "model.bin");
  test::expect_same_model(*given, *open_model(golden_dir() / kMoe));
  fs::copy_file(golden_dir() / kMoe / "config.json", folder / "config.json");
  test::expect_same_model(*open_model(folder / "model.bin"), *given);
  test::expect_same_model(*open_model(folder.path()), *given);
}

TEST(ModelSourceTest, ModelBinNamesHaveNoLeadingModel) {
  const TemporaryFolder folder;
  test::write_bytes(folder / "model.bin", test::model_bin_text(test::golden_tensors(kMoe)));
  expect_error([&] { open_model(folder / "model.bin", golden_dir() / kMoe / "config.json"); }, ExitCode::kData,
               {"model.bin", "missing"});
}

// A checkpoint in three files with their index.
struct Indexed {
  OrderedJson index;
  std::map<std::string, std::vector<HandTensor>> files;

  explicit Indexed(const std::string& golden_case) {
    uint64_t total = 0, at = 0;
    for (const HandTensor& tensor : test::golden_tensors(golden_case)) {
      const std::string file = fmt::format("model-{:05}-of-00003.safetensors", at++ % 3 + 1);
      files[file].push_back(tensor);
      index["weight_map"][tensor.name] = file;
      total += tensor.bytes.size();
    }
    index["metadata"]["total_size"] = total;
  }
  void write(const fs::path& folder, const std::string& golden_case) const {
    fs::create_directories(folder);
    fs::copy_file(golden_dir() / golden_case / "config.json", folder / "config.json");
    for (const auto& [name, tensors] : files) test::write_bytes(folder / name, test::safetensors_text(tensors));
    test::write_bytes(folder / "model.safetensors.index.json", index.dump(2));
  }
};

TEST(HfIndexTest, ReadsACheckpointInSeveralFiles) {
  for (const std::string& golden_case : test::kGoldenCases) {
    const TemporaryFolder folder;
    Indexed(golden_case).write(folder / "m", golden_case);
    test::expect_same_model(*open_model(folder / "m"), *open_model(golden_dir() / golden_case));
  }
}

TEST(HfIndexTest, RefusesLies) {
  struct Lie {
    std::string what;
    std::function<void(Indexed&)> tell;
    std::vector<std::string> parts;
    ExitCode code = ExitCode::kData;
  };
  const std::string first = "model-00001-of-00003.safetensors", second = "model-00002-of-00003.safetensors";
  const std::string embedding = "model.embed_tokens.weight";
  const std::vector<Lie> lies = {
      {"other file",
       [&](Indexed& c) { c.index["weight_map"][embedding] = second; },
       {first, embedding, "does not place"}},
      {"tensor that is nowhere",
       [&](Indexed& c) { c.index["weight_map"]["model.x"] = first; },
       {first, "no tensor model.x"}},
      {"tensor that is not in the index",
       [&](Indexed& c) { c.index["weight_map"].erase(embedding); },
       {first, embedding}},
      {"tensor in two files",
       [&](Indexed& c) { c.files[second].push_back(c.files[first].front()); },
       {second, embedding}},
      {"missing file",
       [&](Indexed& c) { c.index["weight_map"][embedding] = "gone.safetensors"; },
       {"gone.safetensors"},
       ExitCode::kNoInput},
      {"path upwards", [&](Indexed& c) { c.index["weight_map"][embedding] = "../m.safetensors"; }, {"../m", "plain"}},
      {"absolute path",
       [&](Indexed& c) { c.index["weight_map"][embedding] = "/etc/x.safetensors"; },
       {"/etc", "plain"}},
      {"no safetensors",
       [&](Indexed& c) { c.index["weight_map"][embedding] = "config.json"; },
       {"config.json", "plain"}},
      {"file is a number", [&](Indexed& c) { c.index["weight_map"][embedding] = 1; }, {embedding, "plain"}},
      {"empty map", [](Indexed& c) { c.index["weight_map"] = OrderedJson::object(); }, {"names no tensor"}},
      {"map is a list", [](Indexed& c) { c.index["weight_map"] = OrderedJson::array(); }, {"weight_map"}},
      {"no map", [](Indexed& c) { c.index.erase("weight_map"); }, {"weight_map"}},
      {"wrong total", [](Indexed& c) { c.index["metadata"]["total_size"] = 17; }, {"total_size is 17"}},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.what);
    const TemporaryFolder folder;
    Indexed checkpoint(kMoe);
    lie.tell(checkpoint);
    checkpoint.write(folder / "m", kMoe);
    expect_error([&] { open_model(folder / "m"); }, lie.code, lie.parts);
  }
}

TEST(HfIndexTest, RefusesAFolderWithBothForms) {
  const TemporaryFolder folder;
  Indexed(kMoe).write(folder / "m", kMoe);
  test::write_bytes(folder / "m/model.safetensors", test::safetensors_text(test::golden_tensors(kMoe)));
  expect_error([&] { open_model(folder / "m"); }, ExitCode::kData, {"/m", "both"});
}

TEST(NamedConfigTest, TakesANameOrAFile) {
  EXPECT_EQ(named_config_text("lfm2-tiny"), builtin_model_config("lfm2-tiny"));
  EXPECT_EQ(named_config_text((golden_dir() / kMoe / "config.json").string()),
            test::read_bytes(golden_dir() / kMoe / "config.json"));
  expect_error([] { named_config_text("lfm3"); }, ExitCode::kNoInput, {"lfm3", "lfm2-8b-a1b"});
}

}  // namespace
}  // namespace lfm2
