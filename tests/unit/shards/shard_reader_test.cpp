// Shards that were damaged, mixed up or made by others: each is refused by name, or read correctly.
#include "stage/shards/shard_reader.h"

#include <xxhash.h>

#include <functional>
#include <random>

#include "stage/hdf5/h5.h"
#include "stage/hdf5/h5_scan.h"
#include "stage/shards/shard_format.h"
#include "support/weights_support.h"
#include "weights-tools/commands/commands.h"
#include "weights-tools/formats/shard_writer.h"
#include "weights-tools/model/copy.h"

#if defined(__SANITIZE_ADDRESS__)
// HDF5 1.10 leaks memory where it meets damaged metadata, here hundreds of times.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }
#endif

namespace lfm2 {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::golden_dir;
using test::TemporaryFolder;

const std::string kNorm = "model.layers.0.ffn_norm.weight";  // [48], in the first stage

void split(const std::string& golden_case, const fs::path& out, const std::vector<LayerRange>& stages,
           std::optional<DType> dtype = {}) {
  const auto source = open_model(golden_dir() / golden_case);
  ShardWriter writer(*source, stages, dtype, out, false);
  Progress progress("split", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  copy_model(*source, writer, progress);
}

std::string read(const ShardSet& shards, const ShardTensor& tensor) {
  std::string bytes;
  shards.read(tensor, [&](uint64_t first, std::span<const std::byte> piece) {
    EXPECT_EQ(first, bytes.size());
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return bytes;
}

// Opens a finished shard for writing, without the project's own layer.
void edit(const fs::path& path, const std::function<void(hid_t)>& change) {
  const h5::Id access{H5Pcreate(H5P_FILE_ACCESS), H5Pclose};
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  const h5::Id file{H5Fopen(path.c_str(), H5F_ACC_RDWR, access.get()), H5Fclose};
  ASSERT_TRUE(file) << path;
  change(file.get());
}

void remove_attribute(hid_t file, const char* object, const char* name) {
  ASSERT_GE(H5Adelete_by_name(file, object, name, H5P_DEFAULT), 0) << name;
}

void set_integer(hid_t file, const char* name, int64_t value) {
  const h5::Id attribute{H5Aopen(file, name, H5P_DEFAULT), H5Aclose};
  ASSERT_GE(H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value), 0) << name;
}

void add_text(hid_t file, const char* object, const char* name, const std::string& value) {
  const h5::Id owner{H5Oopen(file, object, H5P_DEFAULT), H5Oclose}, type{H5Tcopy(H5T_C_S1), H5Tclose};
  const h5::Id space{H5Screate(H5S_SCALAR), H5Sclose};
  H5Tset_size(type.get(), value.size() + 1);
  const h5::Id attribute{H5Acreate2(owner.get(), name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
  ASSERT_GE(H5Awrite(attribute.get(), type.get(), value.c_str()), 0) << name;
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

class ShardReaderTest : public ::testing::Test {
 protected:
  static std::vector<LayerRange> stages() { return explicit_partition(5, {2, 1, 2}); }
  void SetUp() override { split("tiny-dense", shards(), stages()); }
  fs::path shards() const { return folder_ / "shards"; }
  fs::path stage(int64_t number) const { return shards() / shard::file_name(number, 3); }
  void expect_refused(const std::vector<std::string>& parts, ExitCode code = ExitCode::kData) const {
    expect_error([&] { ShardSet::open(shards()); }, code, parts);
  }

  TemporaryFolder folder_;
};

TEST_F(ShardReaderTest, ReadsWhatWasSplit) {
  const ShardSet shards_read = ShardSet::open(shards());
  const auto model = open_model(golden_dir() / "tiny-dense");
  EXPECT_EQ(shards_read.stages(), stages());
  EXPECT_EQ(shards_read.config(), model->config());
  EXPECT_EQ(shards_read.config_text(), model->config_text());
  EXPECT_EQ(shards_read.total_bytes(), model->total_bytes());
  EXPECT_EQ(shards_read.dtype(), DType::kF32);
  EXPECT_EQ(shards_read.split_id().size(), 32u);
  ASSERT_EQ(shards_read.tensors().size(), model->tensors().size());
  for (size_t i = 0; i < model->tensors().size(); ++i) {
    const ShardTensor& tensor = shards_read.tensors()[i];
    EXPECT_EQ(tensor.spec.name, model->tensors()[i].spec.name);
    EXPECT_EQ(&shards_read.find(tensor.spec.name), &tensor);
    const std::string bytes = test::tensor_bytes(*model, i);
    EXPECT_TRUE(read(shards_read, tensor) == bytes) << tensor.spec.name;
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
  for (const ShardTensor& tensor : before.tensors()) expected[tensor.spec.name] = read(before, tensor);
  for (int64_t number = 0; number < 3; ++number) {
    const h5::Scan scan = h5::scan(CheckedFile(stage(number)));
    edit(stage(number), [&](hid_t file) {
      for (const auto& [name, dataset] : scan.datasets) store_in_chunks(file, name);
    });
  }
  const ShardSet after = ShardSet::open(shards());
  for (const ShardTensor& tensor : after.tensors()) {
    EXPECT_FALSE(tensor.contiguous) << tensor.spec.name;
    EXPECT_EQ(read(after, tensor), expected[tensor.spec.name]) << tensor.spec.name;
    std::vector<std::byte> middle(static_cast<size_t>(tensor.bytes) - 3);  // ends inside a row
    after.read(tensor, 2, middle);
    EXPECT_EQ(std::memcmp(middle.data(), expected[tensor.spec.name].data() + 2, middle.size()), 0) << tensor.spec.name;
  }
}

TEST_F(ShardReaderTest, ADamagedChunkNamesTheTensor) {
  edit(stage(0), [&](hid_t file) {
    store_in_chunks(file, kNorm);
    const h5::Id dataset{H5Dopen2(file, kNorm.c_str(), H5P_DEFAULT), H5Dclose};
    const float other = 1;
    const h5::Id memory{H5Screate(H5S_SCALAR), H5Sclose}, space{H5Dget_space(dataset.get()), H5Sclose};
    const hsize_t first = 40, count = 1;
    H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &first, nullptr, &count, nullptr);
    ASSERT_GE(H5Dwrite(dataset.get(), H5T_NATIVE_FLOAT, memory.get(), space.get(), H5P_DEFAULT, &other), 0);
  });
  const ShardSet set = ShardSet::open(shards());
  expect_error([&] { read(set, set.find(kNorm)); }, ExitCode::kData, {kNorm, "damaged", "stage"});
}

TEST_F(ShardReaderTest, RefusesFoldersWithoutShards) {
  fs::create_directory(folder_ / "empty");
  expect_error([&] { ShardSet::open(folder_ / "empty"); }, ExitCode::kNoInput, {"/empty", "split"});
  expect_error([&] { ShardSet::open(folder_ / "absent"); }, ExitCode::kNoInput, {"/absent"});
  expect_error([&] { ShardSet::open(stage(0)); }, ExitCode::kNoInput, {"stage-00", "expected the folder"});
}

TEST_F(ShardReaderTest, SaysHowToSplitWhatIsAModel) {
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

TEST_F(ShardReaderTest, RefusesMissingStages) {
  for (int64_t missing = 0; missing < 3; ++missing) {
    SCOPED_TRACE(missing);
    fs::rename(stage(missing), folder_ / "aside");
    expect_refused({missing == 2 ? "stage is missing" : "expected stage " + std::to_string(missing)});
    fs::rename(folder_ / "aside", stage(missing));
  }
}

TEST_F(ShardReaderTest, RefusesSwappedNames) {
  fs::rename(stage(0), folder_ / "aside");
  fs::rename(stage(1), stage(0));
  fs::rename(folder_ / "aside", stage(1));
  expect_refused({"stage-00-of-03.h5", "holds stage 1", "expected stage 0"});
}

TEST_F(ShardReaderTest, RefusesShardsOfTwoSplits) {
  split("tiny-dense", folder_ / "bf16", stages(), DType::kBf16);
  fs::copy_file(folder_ / "bf16" / stage(1).filename(), stage(1), fs::copy_options::overwrite_existing);
  expect_refused({"stage-01-of-03.h5", "split_id", "stage-00-of-03.h5"});
}

TEST_F(ShardReaderTest, RefusesACopyUnderAnotherName) {
  fs::copy_file(stage(2), shards() / "stage-03-of-03.h5");
  expect_refused({"stage-03-of-03.h5", "holds stage 2", "expected stage 3"});
}

TEST_F(ShardReaderTest, RefusesEdits) {
  struct Edit {
    std::string what;
    std::function<void(hid_t)> change;
    std::vector<std::string> parts;
  };
  const std::vector<Edit> edits = {
      {"no format", [](hid_t f) { remove_attribute(f, "/", shard::kFormatAttribute); }, {"no shard", "format"}},
      {"other format", [](hid_t f) { replace_text(f, shard::kFormatAttribute, "gguf"); }, {"no shard"}},
      {"newer schema",
       [](hid_t f) { set_integer(f, shard::kVersionAttribute, 2); },
       {"schema_version is 2", "expected 1"}},
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
  const std::string good = test::read_bytes(stage(0));
  for (const Edit& e : edits) {
    SCOPED_TRACE(e.what);
    test::write_bytes(stage(0), good);
    edit(stage(0), e.change);
    std::vector<std::string> parts = e.parts;
    if (e.what != "missing tensor" && e.what != "tensor of another stage") parts.push_back("stage-00-of-03.h5");
    // The second file is the one whose layers do not continue the first one's.
    if (e.what == "other layers") parts.back() = "stage-01-of-03.h5";
    expect_refused(parts);
  }
}

TEST_F(ShardReaderTest, RefusesBadConfigurations) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"", "JSON"}, {"{}", "model_type"}, {"{\"model_type\":\"gpt2\"}", "gpt2"}, {"{\"a\":1,\"a\":2}", "twice"}}) {
    for (int64_t number = 0; number < 3; ++number)
      edit(stage(number), [&, text = text](hid_t f) { replace_text(f, shard::kConfigAttribute, text); });
    expect_refused({"stage-00-of-03.h5", part});
  }
}

TEST_F(ShardReaderTest, RefusesTruncatedFiles) {
  const std::string good = test::read_bytes(stage(1));
  for (const double share : {0.0, 0.001, 0.01, 0.3, 0.7, 0.99, 0.9999}) {
    test::write_bytes(stage(1), good.substr(0, static_cast<size_t>(share * static_cast<double>(good.size()))));
    expect_refused({"stage-01-of-03.h5"});
  }
}

TEST_F(ShardReaderTest, OneChangedBitInAnyTensorIsFoundAndNamed) {
  std::mt19937 random(1);
  const ShardSet good = ShardSet::open(shards());
  for (const ShardTensor& tensor : good.tensors()) {
    const fs::path path = good.files()[tensor.file].path();
    std::string bytes = test::read_bytes(path);
    const size_t at = tensor.offset + random() % tensor.bytes;
    bytes[at] = static_cast<char>(bytes[at] ^ 1 << random() % 8);
    test::write_bytes(folder_ / "aside", bytes);
    fs::rename(path, folder_ / "good");
    fs::rename(folder_ / "aside", path);
    const ShardSet damaged = ShardSet::open(shards());
    expect_error([&] { read(damaged, damaged.find(tensor.spec.name)); }, ExitCode::kData,
                 {path.filename().string(), tensor.spec.name, "damaged"});
    fs::rename(folder_ / "good", path);
  }
}

// A model whose shards have a few thousand bytes, with everything that a shard can hold and one aligned tensor.
constexpr const char* kSmallConfig = R"({"model_type": "lfm2", "vocab_size": 130, "hidden_size": 8,
  "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "num_attention_heads": 2,
  "num_key_value_heads": 1, "intermediate_size": 8, "block_auto_adjust_ff_dim": false, "conv_bias": true,
  "max_position_embeddings": 64})";

struct SmallShard {
  explicit SmallShard(const fs::path& folder) {
    test::write_bytes(folder / "config.json", kSmallConfig);
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
    bytes = test::read_bytes(file);
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
      if (tensor != nullptr) read(damaged, damaged.find(tensor->spec.name));
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
    test::write_bytes(shard.file, shard.bytes);
  }
  test::write_bytes(shard.file, shard.bytes + std::string(100, '\0') + "appended");
  expect_error([&] { ShardSet::open(shard.shards); }, ExitCode::kData, {"metadata", "belongs to nothing"});
  fs::resize_file(shard.file, uint64_t{1} << 40);  // one large hole
  expect_error([&] { ShardSet::open(shard.shards); }, ExitCode::kData, {"metadata", "belong to nothing"});
}

// Shards that are older than the attribute can be read, and their gaps are not checked.
TEST(ShardBytesTest, ShardsWithoutTheGapsAttributeStayReadable) {
  const TemporaryFolder folder;
  const SmallShard shard(folder.path());
  edit(shard.file, [](hid_t file) { remove_attribute(file, "/", shard::kGapsAttribute); });
  const std::string bytes = test::read_bytes(shard.file);
  test::write_bytes(shard.file, bytes + "appended");
  EXPECT_EQ(ShardSet::open(shard.shards).tensors().size(), open_model(folder / "model.safetensors")->tensors().size());
}

}  // namespace
}  // namespace lfm2
