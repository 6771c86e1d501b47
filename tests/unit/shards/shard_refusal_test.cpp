// Shards that are missing, mixed up or made by others: each is refused by name.
#include <functional>

#include "support/shard_edits.h"

namespace lfm2::test {
namespace {

namespace fs = std::filesystem;

class ShardRefusalTest : public ThreeShardsTest {};

void set_integer(hid_t file, const char* name, int64_t value) {
  const h5::Id attribute{H5Aopen(file, name, H5P_DEFAULT), H5Aclose};
  ASSERT_GE(H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value), 0) << name;
}

void replace_text(hid_t file, const char* name, const std::string& value) {
  remove_attribute(file, "/", name);
  add_text(file, "/", name, value);
}

enum class Storage { kContiguous, kCompact, kExternal };

void add_dataset(hid_t file, const std::string& name, hid_t type, std::vector<hsize_t> dims,
                 Storage storage = Storage::kContiguous) {
  const h5::Id space{H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose};
  const h5::Id creation{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
  if (storage != Storage::kExternal) H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY);
  if (storage == Storage::kCompact) H5Pset_layout(creation.get(), H5D_COMPACT);
  if (storage == Storage::kExternal) H5Pset_external(creation.get(), "/etc/passwd", 0, H5F_UNLIMITED);
  const h5::Id dataset{H5Dcreate2(file, name.c_str(), type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                       H5Dclose};
  ASSERT_TRUE(dataset) << name;
  add_text(file, name.c_str(), shard::kChecksumAttribute, std::string(32, '0'));
}

void replace_dataset(hid_t file, hid_t type, std::vector<hsize_t> dims, Storage storage = Storage::kContiguous) {
  ASSERT_GE(H5Ldelete(file, kNorm.c_str(), H5P_DEFAULT), 0);
  add_dataset(file, kNorm, type, std::move(dims), storage);
}

TEST_F(ShardRefusalTest, RefusesFoldersWithoutShards) {
  fs::create_directory(folder_ / "empty");
  expect_error([&] { ShardSet::open(folder_ / "empty"); }, ExitCode::kNoInput, {"/empty", "split"});
  expect_error([&] { ShardSet::open(folder_ / "absent"); }, ExitCode::kNoInput, {"/absent"});
  expect_error([&] { ShardSet::open(stage(0)); }, ExitCode::kNoInput, {"stage-00", "expected the folder"});
}

TEST_F(ShardRefusalTest, SaysHowToSplitWhatIsAModel) {
  const auto make = [&](const std::string& folder, const std::vector<std::string>& names) {
    std::filesystem::create_directory(folder_ / folder);
    for (const std::string& name : names) std::ofstream(folder_ / folder / name) << "{}";
    return folder_ / folder;
  };
  const auto expect_hint = [&](const std::filesystem::path& model, const std::string& what) {
    expect_error(
        [&] { ShardSet::open(model); }, ExitCode::kData,
        {fmt::format("{0}: is {1}, expected shards: weights-tools split {0} --out shards/", model.string(), what)});
  };
  expect_hint(make("one", {"config.json", "model.safetensors", "tokenizer.json"}), "a Hugging Face model");
  expect_hint(make("parts", {"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}),
              "a Hugging Face model");
  expect_hint(make("old", {"model.bin"}), "the folder of a model.bin");
  expect_hint(folder_ / "one/model.safetensors", "a model in one file");
  expect_hint(folder_ / "old/model.bin", "a model in one file");
  const auto unrelated = make("unrelated", {"config.json", "notes.txt"});
  expect_error([&] { ShardSet::open(unrelated); }, ExitCode::kNoInput, {"unrelated", "split"});
}

TEST_F(ShardRefusalTest, RefusesMissingStages) {
  for (int64_t missing = 0; missing < 3; ++missing) {
    SCOPED_TRACE(missing);
    fs::rename(stage(missing), folder_ / "aside");
    expect_refused(
        {fmt::format("stage {} of 3 is missing, expected a file such as stage-0{}-of-03.h5", missing, missing)},
        ExitCode::kNoInput);
    fs::rename(folder_ / "aside", stage(missing));
  }
}

TEST_F(ShardRefusalTest, RefusesSwappedNames) {
  fs::rename(stage(0), folder_ / "aside");
  fs::rename(stage(1), stage(0));
  fs::rename(folder_ / "aside", stage(1));
  expect_refused({"stage-00-of-03.h5", "holds stage 1", "expected stage 0"});
}

TEST_F(ShardRefusalTest, RefusesShardsOfTwoSplits) {
  split("tiny-dense", folder_ / "bf16", stages(), DType::kBf16);
  fs::copy_file(folder_ / "bf16" / stage(1).filename(), stage(1), fs::copy_options::overwrite_existing);
  expect_refused({"stage-01-of-03.h5", "split_id", "stage-00-of-03.h5"});
}

TEST_F(ShardRefusalTest, RefusesACopyUnderAnotherName) {
  fs::copy_file(stage(2), shards() / "stage-03-of-03.h5");
  expect_refused({"stage 2 stands in stage-02-of-03.h5 and in stage-03-of-03.h5"});
}

TEST_F(ShardRefusalTest, RefusesEdits) {
  struct Edit {
    std::string what;
    std::function<void(hid_t)> change;
    std::vector<std::string> parts;
  };
  const std::vector<Edit> edits = {
      {"no format", [](hid_t f) { remove_attribute(f, "/", shard::kFormatAttribute); }, {"no shard", "format"}},
      {"other format", [](hid_t f) { replace_text(f, shard::kFormatAttribute, "gguf"); }, {"no shard"}},
      {"newer schema",
       [](hid_t f) { set_integer(f, shard::kVersionAttribute, 3); },
       {"schema_version is 3", "expected 1 or 2"}},
      {"no split id", [](hid_t f) { remove_attribute(f, "/", shard::kSplitIdAttribute); }, {"split_id"}},
      {"no configuration", [](hid_t f) { remove_attribute(f, "/", shard::kConfigAttribute); }, {"config_json"}},
      {"other layers", [](hid_t f) { set_integer(f, shard::kLayerCountAttribute, 1); }, {"layers"}},
      {"layers elsewhere", [](hid_t f) { set_integer(f, shard::kLayerFirstAttribute, -1); }, {"layers from -1"}},
      {"2^63 layers", [](hid_t f) { set_integer(f, shard::kLayerCountAttribute, INT64_MAX); }, {"layers"}},
      {"missing tensor", [](hid_t f) { H5Ldelete(f, kNorm.c_str(), H5P_DEFAULT); }, {kNorm, "missing", "[48]"}},
      {"one tensor more",
       [](hid_t f) { add_dataset(f, "model.extra", H5T_IEEE_F32LE, {4}); },
       {"model.extra", "no part"}},
      {"tensor of another stage",
       [](hid_t f) { add_dataset(f, "model.embedding_norm.weight", H5T_IEEE_F32LE, {48}); },
       {"model.embedding_norm.weight", "another shard"}},
      {"wrong shape",
       [](hid_t f) {
         replace_dataset(f, H5T_IEEE_F32LE, {24, 2});
       },
       {kNorm, "[24, 2]", "[48]"}},
      {"double", [](hid_t f) { replace_dataset(f, H5T_IEEE_F64LE, {48}); }, {kNorm, "64-bit float", "expected fp32"}},
      {"integer", [](hid_t f) { replace_dataset(f, H5T_STD_I32LE, {48}); }, {kNorm, "expected fp32"}},
      {"big-endian", [](hid_t f) { replace_dataset(f, H5T_IEEE_F32BE, {48}); }, {kNorm, "expected fp32"}},
      {"compact",
       [](hid_t f) { replace_dataset(f, H5T_IEEE_F32LE, {48}, Storage::kCompact); },
       {kNorm, "contiguously"}},
      {"external file",
       [](hid_t f) { replace_dataset(f, H5T_IEEE_F32LE, {48}, Storage::kExternal); },
       {kNorm, "external"}},
      {"soft link",
       [](hid_t f) { H5Lcreate_soft(kNorm.c_str(), f, "alias", H5P_DEFAULT, H5P_DEFAULT); },
       {"alias", "link"}},
      {"external link",
       [](hid_t f) { H5Lcreate_external("/etc/passwd", "/", f, "alias", H5P_DEFAULT, H5P_DEFAULT); },
       {"alias", "link"}},
      {"hard link under another name",
       [](hid_t f) { H5Lcreate_hard(f, kNorm.c_str(), f, "alias", H5P_DEFAULT, H5P_DEFAULT); },
       {"alias", kNorm, "overlap"}},
      {"group",
       [](hid_t f) {
         const h5::Id group{H5Gcreate2(f, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose};
       },
       {"group"}},
      {"no checksum",
       [](hid_t f) { remove_attribute(f, kNorm.c_str(), shard::kChecksumAttribute); },
       {kNorm, "xxh3_128"}},
  };
  const std::string good = read_bytes(stage(0));
  for (const Edit& e : edits) {
    SCOPED_TRACE(e.what);
    write_bytes(stage(0), good);
    edit_shard(stage(0), e.change);
    std::vector<std::string> parts = e.parts;
    if (e.what != "missing tensor" && e.what != "tensor of another stage") parts.push_back("stage-00-of-03.h5");
    // The second file is the one whose layers do not continue the first one's.
    if (e.what == "other layers") parts.back() = "stage-01-of-03.h5";
    expect_refused(parts);
  }
}

TEST_F(ShardRefusalTest, RefusesBadConfigurations) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"", "JSON"}, {"{}", "model_type"}, {"{\"model_type\":\"gpt2\"}", "gpt2"}, {"{\"a\":1,\"a\":2}", "twice"}}) {
    for (int64_t number = 0; number < 3; ++number)
      edit_shard(stage(number), [&, text = text](hid_t f) { replace_text(f, shard::kConfigAttribute, text); });
    expect_refused({"stage-00-of-03.h5", part});
  }
}

TEST_F(ShardRefusalTest, RefusesTruncatedFiles) {
  const std::string good = read_bytes(stage(1));
  for (const double share : {0.0, 0.001, 0.01, 0.3, 0.7, 0.99, 0.9999}) {
    write_bytes(stage(1), good.substr(0, static_cast<size_t>(share * static_cast<double>(good.size()))));
    expect_refused({"stage-01-of-03.h5"});
  }
}

}  // namespace
}  // namespace lfm2::test
