// Round trips: what comes out of shards is, byte for byte, what went in, however it was cut.
#include <bit>
#include <cmath>

#include "stage/shards/shard_format.h"
#include "stage/shards/shard_reader.h"
#include "support/weights_support.h"
#include "weights-tools/commands/stages.h"
#include "weights-tools/formats/shard_writer.h"
#include "weights-tools/model/copy.h"

namespace lfm2 {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::golden_dir;
using test::read_bytes;
using test::TemporaryFolder;

void split(const fs::path& model, const fs::path& out, const std::vector<LayerRange>& stages,
           std::optional<DType> dtype = {}, bool force = false) {
  const auto source = open_model(model);
  ShardWriter writer(*source, stages, dtype, out, force);
  Progress progress("split", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  copy_model(*source, writer, progress);
}

void write_as(const ModelSource& source, const fs::path& out, bool force = false) {
  const auto writer = create_model(source, out, force);
  Progress progress("merge", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  copy_model(source, *writer, progress);
}

int64_t layers_of(const std::string& golden_case) { return open_model(golden_dir() / golden_case)->config().layers; }

TEST(SplitTest, ComesBackByteForByteForEveryNumberOfStages) {
  for (const std::string& name : test::kGoldenCases) {
    const int64_t layers = layers_of(name);
    const std::string original = read_bytes(golden_dir() / name / "model.safetensors");
    for (int64_t stages = 1; stages <= layers; stages += layers > 8 ? 5 : 1) {
      SCOPED_TRACE(fmt::format("{} in {} stages", name, stages));
      const TemporaryFolder folder;
      split(golden_dir() / name, folder / "shards", equal_partition(layers, stages));
      EXPECT_EQ(test::file_names(folder / "shards").size(), static_cast<size_t>(stages));
      write_as(*open_model(folder / "shards"), folder / "back.safetensors");
      EXPECT_TRUE(read_bytes(folder / "back.safetensors") == original);
      EXPECT_EQ(read_bytes(folder / "config.json"), read_bytes(golden_dir() / name / "config.json"));
    }
  }
}

TEST(SplitTest, UnevenStagesHoldWhatTheySay) {
  const TemporaryFolder folder;
  split(golden_dir() / "mini-24", folder / "shards", explicit_partition(24, {1, 12, 3, 8}));
  const ShardSet shards = ShardSet::open(folder / "shards");
  EXPECT_EQ(shards.stages(), explicit_partition(24, {1, 12, 3, 8}));
  for (const ShardTensor& tensor : shards.tensors()) {
    const int64_t layer = std::clamp<int64_t>(tensor.spec.layer, 0, 23);
    const LayerRange range = shards.stages()[tensor.file];
    EXPECT_TRUE(layer >= range.first && layer < range.end()) << tensor.spec.name;
  }
  write_as(*open_model(folder / "shards"), folder / "hf");
  EXPECT_TRUE(read_bytes(folder / "hf/model.safetensors") == read_bytes(golden_dir() / "mini-24/model.safetensors"));
  EXPECT_EQ(test::file_names(folder / "hf"), (std::set<std::string>{"config.json", "model.safetensors"}));
}

TEST(SplitTest, ModelBinComesBackByteForByte) {
  for (const std::string& name : {std::string("tiny-moe"), std::string("tiny-dense")}) {
    const TemporaryFolder folder;
    fs::create_directory(folder / "a");
    fs::create_directory(folder / "b");
    write_as(*open_model(golden_dir() / name), folder / "a/model.bin");
    test::expect_same_model(*open_model(folder / "a/model.bin"), *open_model(golden_dir() / name));
    split(folder / "a/model.bin", folder / "shards", equal_partition(layers_of(name), 3));
    write_as(*open_model(folder / "shards"), folder / "b/model.bin");
    EXPECT_TRUE(read_bytes(folder / "a/model.bin") == read_bytes(folder / "b/model.bin")) << name;
  }
}

TEST(SplitTest, EqualInputGivesEqualFiles) {
  const TemporaryFolder folder;
  for (const char* out : {"a", "b"}) split(golden_dir() / "tiny-bf16", folder / out, equal_partition(8, 3));
  for (const std::string& file : test::file_names(folder / "a"))
    EXPECT_TRUE(read_bytes(folder / "a" / file) == read_bytes(folder / "b" / file)) << file;
}

TEST(SplitTest, SplitIdTellsSplitsApart) {
  const TemporaryFolder folder;
  split(golden_dir() / "tiny-moe", folder / "a", equal_partition(8, 2));
  split(golden_dir() / "tiny-moe", folder / "layers", explicit_partition(8, {3, 5}));
  split(golden_dir() / "tiny-moe", folder / "type", equal_partition(8, 2), DType::kBf16);
  std::vector<test::HandTensor> tensors = test::golden_tensors("tiny-moe");
  tensors.back().bytes[0] ^= 1;
  test::write_folder(folder / "changed", "tiny-moe", tensors);
  split(folder / "changed", folder / "bit", equal_partition(8, 2));
  std::set<std::string> ids;
  for (const char* name : {"a", "layers", "type", "bit"}) ids.insert(ShardSet::open(folder / name).split_id());
  EXPECT_EQ(ids.size(), 4u);
}

// Rounds to the nearest representable number with functions of the C++ library, without looking at bit patterns.
double nearest(double value, int mantissa_bits, int least_exponent) {
  if (value == 0) return value;
  const int exponent = std::max(std::ilogb(value), least_exponent);
  const double unit = std::ldexp(1.0, exponent - mantissa_bits);
  return std::nearbyint(value / unit) * unit;  // ties go to the even one
}

void expect_converted(const std::string& golden_case, DType dtype, int mantissa_bits, int least_exponent) {
  const TemporaryFolder folder;
  split(golden_dir() / golden_case, folder / "shards", equal_partition(layers_of(golden_case), 2), dtype);
  const auto before = open_model(golden_dir() / golden_case), after = open_model(folder / "shards");
  for (size_t i = 0; i < before->tensors().size(); ++i) {
    const SourceTensor &from = before->tensors()[i], &to = after->tensors()[i];
    SCOPED_TRACE(from.spec.name);
    if (from.spec.name.ends_with("expert_bias")) {
      EXPECT_EQ(to.dtype, DType::kF32);
      EXPECT_EQ(test::tensor_bytes(*before, i), test::tensor_bytes(*after, i));
      continue;
    }
    ASSERT_EQ(to.dtype, dtype);
    const size_t count = numel(from.spec.dims);
    std::vector<float> a(count), b(count);
    convert(from.dtype, test::tensor_bytes(*before, i).data(), DType::kF32, a.data(), count);
    convert(to.dtype, test::tensor_bytes(*after, i).data(), DType::kF32, b.data(), count);
    for (size_t k = 0; k < count; ++k)
      ASSERT_EQ(b[k], static_cast<float>(nearest(a[k], mantissa_bits, least_exponent))) << k;
  }
}

TEST(SplitTest, ConvertsToBf16) { expect_converted("tiny-moe", DType::kBf16, 7, -126); }
TEST(SplitTest, ConvertsToFp16) { expect_converted("tiny-moe", DType::kF16, 10, -14); }
TEST(SplitTest, ConvertsBf16ToFp16) { expect_converted("tiny-bf16", DType::kF16, 10, -14); }
TEST(SplitTest, WidensToFp32Exactly) { expect_converted("tiny-bf16", DType::kF32, 23, -126); }

TEST(SplitTest, WideningAndBackIsTheSameModel) {
  const TemporaryFolder folder;
  split(golden_dir() / "tiny-bf16", folder / "wide", equal_partition(8, 2), DType::kF32);
  split(folder / "wide", folder / "back", equal_partition(8, 4), DType::kBf16);
  write_as(*open_model(folder / "back"), folder / "hf");
  EXPECT_TRUE(read_bytes(folder / "hf/model.safetensors") == read_bytes(golden_dir() / "tiny-bf16/model.safetensors"));
}

TEST(SplitTest, RefusesWhatExists) {
  const TemporaryFolder folder;
  const auto stages = equal_partition(8, 2);
  split(golden_dir() / "tiny-moe", folder / "shards", stages);
  const std::string before = read_bytes(folder / "shards/stage-00-of-02.h5");
  expect_error([&] { split(golden_dir() / "tiny-bf16", folder / "shards", stages); }, ExitCode::kCantCreate,
               {"/shards", "--force"});
  test::write_bytes(folder / "file", "x");
  expect_error([&] { split(golden_dir() / "tiny-moe", folder / "file", stages); }, ExitCode::kCantCreate, {"/file"});
  expect_error([&] { split(golden_dir() / "tiny-moe", folder / "file/such", stages); }, ExitCode::kCantCreate,
               {"such"});
  EXPECT_NO_THROW(split(golden_dir() / "tiny-moe", folder / "a/b/c/", stages));
  EXPECT_TRUE(before == read_bytes(folder / "shards/stage-00-of-02.h5"));
  fs::create_directory(folder / "empty");
  EXPECT_NO_THROW(split(golden_dir() / "tiny-moe", folder / "empty", stages));
}

TEST(SplitTest, ForceReplacesAnEarlierSplit) {
  const TemporaryFolder folder;
  split(golden_dir() / "tiny-moe", folder / "shards", equal_partition(8, 5));
  test::write_bytes(folder / "shards/notes.txt", "mine");
  split(golden_dir() / "tiny-bf16", folder / "shards", equal_partition(8, 2), {}, true);
  EXPECT_EQ(test::file_names(folder / "shards"),
            (std::set<std::string>{"notes.txt", "stage-00-of-02.h5", "stage-01-of-02.h5"}));
  test::expect_same_model(*open_model(folder / "shards"), *open_model(golden_dir() / "tiny-bf16"));
}

TEST(SplitTest, ForceCanSplitShardsInPlace) {
  const TemporaryFolder folder;
  split(golden_dir() / "tiny-moe", folder / "shards", equal_partition(8, 4));
  split(folder / "shards", folder / "shards", explicit_partition(8, {5, 1, 1, 1}), {}, true);
  EXPECT_EQ(test::file_names(folder / "shards").size(), 4u);
  test::expect_same_model(*open_model(folder / "shards"), *open_model(golden_dir() / "tiny-moe"));
}

TEST(SplitTest, OtherHdf5FilesAreNeitherTakenNorRemoved) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "shards");
  test::write_bytes(folder / "shards/results.h5", "mine");
  expect_error([&] { split(golden_dir() / "tiny-moe", folder / "shards", equal_partition(8, 2), {}, true); },
               ExitCode::kCantCreate, {"results.h5"});
  EXPECT_EQ(test::file_names(folder / "shards"), std::set<std::string>{"results.h5"});
}

// A source that fails in the middle.
class BrokenSource : public ModelSource {
 public:
  explicit BrokenSource(const ModelSource& good) : ModelSource(good.config(), good.config_text()), good_(good) {
    tensors_ = good.tensors();
  }
  std::string_view form() const override { return "broken"; }
  void read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const override {
    if (tensor == tensors_.size() / 2) throw Error(ExitCode::kIo, "read failed: Input/output error");
    good_.read(tensor, first_byte, into);
  }
  std::string file_of(size_t tensor) const override { return good_.file_of(tensor); }

 private:
  const ModelSource& good_;
};

TEST(SplitTest, AFailureLeavesNothing) {
  const TemporaryFolder folder;
  const auto good = open_model(golden_dir() / "tiny-moe");
  const BrokenSource broken(*good);
  Progress progress("split", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  expect_error(
      [&] {
        ShardWriter writer(broken, equal_partition(8, 3), {}, folder / "shards", false);
        EXPECT_EQ(test::file_names(folder / "shards").size(), 3u);  // they have temporary names
        copy_model(broken, writer, progress);
      },
      ExitCode::kIo, {"Input/output"});
  expect_error([&] { copy_model(broken, *create_model(broken, folder / "m.bin", false), progress); }, ExitCode::kIo,
               {});
  expect_error([&] { copy_model(broken, *create_model(broken, folder / "hf", false), progress); }, ExitCode::kIo, {});
  EXPECT_EQ(test::file_names(folder.path()), std::set<std::string>{});
}

TEST(SplitTest, AFailureKeepsTheEarlierSplit) {
  const TemporaryFolder folder;
  split(golden_dir() / "tiny-moe", folder / "shards", equal_partition(8, 2));
  const auto good = open_model(golden_dir() / "tiny-moe");
  const BrokenSource broken(*good);
  Progress progress("split", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  expect_error(
      [&] {
        ShardWriter writer(broken, equal_partition(8, 3), {}, folder / "shards", true);
        copy_model(broken, writer, progress);
      },
      ExitCode::kIo, {"Input/output"});
  EXPECT_EQ(test::file_names(folder / "shards"), (std::set<std::string>{"stage-00-of-02.h5", "stage-01-of-02.h5"}));
  test::expect_same_model(*open_model(folder / "shards"), *good);
}

TEST(MergeTest, RefusesWhatExists) {
  const TemporaryFolder folder;
  const auto model = open_model(golden_dir() / "tiny-dense");
  write_as(*model, folder / "m.safetensors");
  expect_error([&] { write_as(*model, folder / "m.safetensors"); }, ExitCode::kCantCreate,
               {"m.safetensors", "--force"});
  const auto other = open_model(golden_dir() / "tiny-moe");
  expect_error([&] { write_as(*other, folder / "n.safetensors"); }, ExitCode::kCantCreate, {"config.json"});
  EXPECT_EQ(test::file_names(folder.path()), (std::set<std::string>{"config.json", "m.safetensors"}));
  EXPECT_NO_THROW(write_as(*model, folder / "n.safetensors"));  // the configuration is the same, and may stay
  EXPECT_NO_THROW(write_as(*other, folder / "m.safetensors", true));
  EXPECT_EQ(read_bytes(folder / "config.json"), read_bytes(golden_dir() / "tiny-moe/config.json"));
  fs::create_directory(folder / "d.bin");
  expect_error([&] { write_as(*other, folder / "d.bin", true); }, ExitCode::kCantCreate, {"d.bin", "folder"});
}

TEST(MergeTest, DamagedShardsAreNotMerged) {
  const TemporaryFolder folder;
  split(golden_dir() / "tiny-dense", folder / "shards", equal_partition(5, 2));
  const ShardSet shards = ShardSet::open(folder / "shards");
  const ShardTensor& tensor = shards.tensors()[30];
  const fs::path path = shards.files()[tensor.file].path();
  std::string bytes = read_bytes(path);
  bytes[tensor.offset + tensor.bytes / 2] ^= 4;
  test::write_bytes(path, bytes);
  expect_error([&] { write_as(*open_model(folder / "shards"), folder / "m.bin"); }, ExitCode::kData,
               {path.filename().string(), tensor.spec.name, "checksum"});
  EXPECT_EQ(test::file_names(folder.path()), std::set<std::string>{"shards"});
}

TEST(TensorReaderTest, PiecesOfAnySizeGiveTheSameBytes) {
  const auto model = open_model(golden_dir() / "tiny-bf16");
  const std::string whole = test::tensor_bytes(*model, 0);
  std::vector<float> wide(whole.size() / 2);
  convert(DType::kBf16, whole.data(), DType::kF32, wide.data(), wide.size());
  for (const size_t piece : {4u, 7u, 100u, 4096u, 1u << 20}) {
    TensorReader reader(*model, 0, DType::kF32);
    std::vector<std::byte> buffer(piece);
    std::string read;
    while (reader.left_bytes() > 0) {
      const size_t count = reader.next(buffer);
      ASSERT_GT(count, 0u);
      read.append(reinterpret_cast<const char*>(buffer.data()), count);
    }
    ASSERT_EQ(read.size(), wide.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(read.data(), wide.data(), read.size()), 0) << piece;
  }
}

TEST(ShardFormatTest, NamesSortByStage) {
  for (const int64_t stages : {1, 10, 99, 100, 101, 4096}) {
    std::vector<std::string> names;
    for (int64_t stage = 0; stage < stages; ++stage) names.push_back(shard::file_name(stage, stages));
    EXPECT_TRUE(std::is_sorted(names.begin(), names.end())) << stages;
  }
}

}  // namespace
}  // namespace lfm2
