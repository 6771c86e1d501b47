// Weights that become fp8, and fp8 that becomes another type, against sums in double that share no code.
#include <cmath>

#include "base/json/json.h"
#include "support/fp8_checkpoints.h"
#include "weights-tools/formats/shard_writer.h"
#include "weights-tools/model/copy.h"
#include "weights-tools/model/dequantized_source.h"
#include "weights-tools/model/quantizing_source.h"
#include "weights-tools/model/synth.h"

namespace lfm2 {
namespace {

using test::expect_error;
using test::find_tensor;
using test::golden_dir;
using test::HandTensor;
using test::TemporaryFolder;
using Scheme = Quantization::Scheme;

// The value of an E4M3 number, by the format's description.
double e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return NAN;
  const double magnitude = exponent == 0 ? mantissa * 0x1p-9 : std::ldexp(8 + mantissa, exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}

// The nearest E4M3 number, of two equally near the one with an even mantissa, by looking at all of them.
uint8_t nearest_e4m3(double x) {
  uint8_t best = 0;
  for (int bits = 0; bits < 0x7f; ++bits) {
    const double distance = std::fabs(e4m3(static_cast<uint8_t>(bits)) - std::fabs(x));
    const double least = std::fabs(e4m3(best) - std::fabs(x));
    if (distance < least || (distance == least && bits % 2 == 0)) best = static_cast<uint8_t>(bits);
  }
  return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

std::vector<double> values_of(const HandTensor& tensor) {
  std::vector<double> values;
  const size_t bytes = tensor.dtype == "F32" ? 4 : tensor.dtype == "F8_E4M3" ? 1 : 2;
  for (size_t at = 0; at < tensor.bytes.size(); at += bytes) {
    uint32_t bits = 0;
    std::memcpy(&bits, tensor.bytes.data() + at, bytes);
    if (tensor.dtype == "BF16") bits <<= 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    values.push_back(bytes == 1 ? e4m3(static_cast<uint8_t>(bits)) : static_cast<double>(value));
  }
  return values;
}

// The number of the scale of each element.
size_t scale_index(const HandTensor& weight, const HandTensor& scale, size_t element) {
  const size_t row = element / weight.dims[1], column = element % weight.dims[1];
  const bool by_row = scale.dims[0] == weight.dims[0] && scale.dims[1] == 1;
  return by_row ? row : row / 128 * scale.dims[1] + column / 128;
}

std::unique_ptr<ModelSource> quantized(const std::filesystem::path& model, Scheme scheme, Fp8Modules modules,
                                       Fp8Listener listener = {}) {
  return quantize(open_model(model), scheme, modules, std::move(listener));
}

void write_model(const ModelSource& source, const std::filesystem::path& out) {
  const auto writer = create_model(source, out, false);
  Progress progress("quantize", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  copy_model(source, *writer, progress);
}

TEST(QuantizeTest, WritesTheNearestNumbers) {
  for (const Scheme scheme : {Scheme::kChannel, Scheme::kBlock}) {
    for (const std::string golden_case : {"kjv-moe", "tiny-dense"}) {
      SCOPED_TRACE(fmt::format("{} by {}", golden_case, name(scheme)));
      const TemporaryFolder folder;
      std::map<std::string, Fp8Error> errors;
      write_model(*quantized(golden_dir() / golden_case, scheme, Fp8Modules::kAll,
                             [&](const TensorSpec& weight, const Fp8Error& error) { errors[weight.name] = error; }),
                  folder / "q");
      std::vector<HandTensor> before = test::read_safetensors(golden_dir() / golden_case / "model.safetensors");
      std::vector<HandTensor> after = test::read_safetensors(folder / "q/model.safetensors");
      size_t changed = 0;
      for (const HandTensor& tensor : before) {
        const HandTensor& weight = find_tensor(after, tensor.name);
        if (weight.dtype != "F8_E4M3") {
          EXPECT_TRUE(weight.dtype == tensor.dtype && weight.bytes == tensor.bytes) << tensor.name;
          continue;
        }
        if (++changed > 12) continue;  // the rest is done by the same code
        const HandTensor& scale = find_tensor(after, tensor.name + "_scale");
        const std::vector<double> exact = values_of(tensor), scales = values_of(scale);
        std::vector<double> largest(scales.size(), 0);
        double squares = 0, error_squares = 0, largest_error = 0;
        for (size_t i = 0; i < exact.size(); ++i) {
          const size_t at = scale_index(weight, scale, i);
          largest[at] = std::max(largest[at], std::fabs(exact[i]));
          const float quotient = static_cast<float>(exact[i]) / static_cast<float>(scales[at]);
          const auto found = static_cast<uint8_t>(weight.bytes[i]);
          ASSERT_EQ(found, nearest_e4m3(static_cast<double>(quotient))) << tensor.name << " " << i;
          const double error = e4m3(found) * scales[at] - exact[i];
          squares += exact[i] * exact[i];
          error_squares += error * error;
          largest_error = std::max(largest_error, std::fabs(error));
        }
        for (size_t i = 0; i < scales.size(); ++i)
          EXPECT_EQ(static_cast<float>(scales[i]), static_cast<float>(largest[i]) / 448.0f) << scale.name << " " << i;
        const Fp8Error& reported = errors.at(tensor.name);
        EXPECT_EQ(reported.elements, exact.size());
        EXPECT_NEAR(reported.relative_rms(), std::sqrt(error_squares / squares), 1e-6);
        EXPECT_NEAR(static_cast<double>(reported.largest_error), largest_error, 1e-6 * largest_error);
        EXPECT_LT(reported.relative_rms(), 0.036);  // 2^-5 where numbers are uniform in an octave, and some subnormals
      }
      EXPECT_EQ(changed, errors.size());
    }
  }
}

TEST(QuantizeTest, ChoosesModules) {
  const auto names = [](Fp8Modules modules) {
    std::set<std::string> fp8;
    const auto model = quantized(golden_dir() / "tiny-moe", Scheme::kChannel, modules);
    for (const SourceTensor& tensor : model->tensors())
      if (tensor.dtype == DType::kF8) fp8.insert(tensor.spec.name);
    for (const std::string& module : model->config().quantization.ignored)
      EXPECT_FALSE(fp8.contains(module + ".weight")) << module;
    return std::pair(fp8, model->config().quantization.ignored);
  };
  const auto [feed_forwards, many_ignored] = names(Fp8Modules::kFeedForward);
  EXPECT_EQ(feed_forwards.size(), 2u * 3 + 6u * 8 * 3);
  for (const std::string& name : feed_forwards) EXPECT_NE(name.find("feed_forward"), std::string::npos);
  EXPECT_EQ(many_ignored.size(), 6u * 2 + 2u * 4 + 6u + 1);  // projections, routers, LM head
  const auto [all, few_ignored] = names(Fp8Modules::kAll);
  EXPECT_EQ(all.size(), feed_forwards.size() + 6 * 2 + 2 * 4);
  EXPECT_EQ(few_ignored.size(), 6u + 1);
}

// What quantize writes is a checkpoint like those of the libraries: shards take it, and it comes back.
TEST(QuantizeTest, TheResultIsACheckpoint) {
  for (const Scheme scheme : {Scheme::kChannel, Scheme::kBlock}) {
    const TemporaryFolder folder;
    write_model(*quantized(golden_dir() / "tiny-bf16", scheme, Fp8Modules::kFeedForward), folder / "q");
    const auto model = open_model(folder / "q");
    EXPECT_EQ(model->config().quantization.scheme, scheme);
    EXPECT_EQ(model->config().quantization.method, Quantization::Method::kCompressedTensors);
    {
      ShardWriter writer(*model, equal_partition(8, 3), {}, folder / "shards", false);
      Progress progress("split", 0, Progress::Unit::kBytes, ProgressMode::kOff);
      copy_model(*model, writer, progress);
    }
    write_model(*open_shards(folder / "shards"), folder / "back");
    EXPECT_TRUE(test::read_bytes(folder / "back/model.safetensors") ==
                test::read_bytes(folder / "q/model.safetensors"));
    EXPECT_EQ(test::read_bytes(folder / "back/config.json"), test::read_bytes(folder / "q/config.json"));
    expect_error([&] { quantized(folder / "shards", scheme, Fp8Modules::kAll); }, ExitCode::kData,
                 {"fp8 already", "compressed-tensors"});
  }
  expect_error([&] { quantized(golden_dir() / "tiny-fp8-hf", Scheme::kBlock, Fp8Modules::kAll); }, ExitCode::kData,
               {"fp8 already"});
}

// Writes tiny-dense with a changed w1, of [ffn, hidden] in fp32.
template <class F>
void write_w1(const std::filesystem::path& folder, F&& change) {
  std::vector<HandTensor> tensors = test::read_safetensors(golden_dir() / "tiny-dense/model.safetensors");
  HandTensor& w1 = find_tensor(tensors, "model.layers.0.feed_forward.w1.weight");
  std::vector<float> values(w1.bytes.size() / 4);
  std::memcpy(values.data(), w1.bytes.data(), w1.bytes.size());
  change(values, w1.dims[1]);
  std::memcpy(w1.bytes.data(), values.data(), w1.bytes.size());
  test::write_folder(folder, "tiny-dense", tensors);
}

TEST(QuantizeTest, RowsWithoutMagnitudeHavePositiveScales) {
  const TemporaryFolder folder;
  write_w1(folder / "m", [](std::vector<float>& values, size_t columns) {
    std::fill_n(values.begin(), columns, 0.0f);
    std::fill_n(values.begin() + static_cast<int64_t>(columns), columns, 0x1p-149f);  // over 448 it is 0
    values[2 * columns] = std::numeric_limits<float>::max();
  });
  write_model(*quantized(folder / "m", Scheme::kChannel, Fp8Modules::kFeedForward), folder / "q");
  std::vector<HandTensor> tensors = test::read_safetensors(folder / "q/model.safetensors");
  const HandTensor& weight = find_tensor(tensors, "model.layers.0.feed_forward.w1.weight");
  const std::vector<double> scales = values_of(find_tensor(tensors, weight.name + "_scale"));
  EXPECT_EQ(scales[0], 1.0);
  EXPECT_EQ(scales[1], 0x1p-126);
  EXPECT_EQ(weight.bytes.substr(0, 2 * weight.dims[1]), std::string(2 * weight.dims[1], '\0'));
  EXPECT_EQ(static_cast<uint8_t>(weight.bytes[2 * weight.dims[1]]), 0x7e);
}

// Parts that threads compute end within rows of 520 and 1100 elements, and within blocks.
TEST(QuantizeTest, AnyNumberOfThreadsGivesTheSame) {
  const std::string config = OrderedJson{
      {"model_type", "lfm2"},
      {"vocab_size", 32},
      {"hidden_size", 520},
      {"num_hidden_layers", 1},
      {"intermediate_size", 1100},
      {"block_auto_adjust_ff_dim", false},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"max_position_embeddings", 64},
      {"layer_types",
       {"full_attention"}}}.dump();
  for (const Scheme scheme : {Scheme::kChannel, Scheme::kBlock}) {
    SCOPED_TRACE(name(scheme));
    const auto results = [&](int threads) {
      std::vector<double> errors;
      const auto model = quantize(
          std::make_unique<SynthSource>(config, "config", 0, DType::kBf16), scheme, Fp8Modules::kAll,
          [&](const TensorSpec&, const Fp8Error& error) {
            errors.insert(errors.end(), {error.squares, error.error_squares});
          },
          threads);
      std::vector<std::string> bytes;
      for (size_t i = 0; i < model->tensors().size(); ++i) bytes.push_back(test::tensor_bytes(*model, i));
      return std::pair(bytes, errors);
    };
    const auto one = results(1);
    EXPECT_EQ(one.second.size(), 2u * 7);
    for (const int threads : {2, 5, 16}) EXPECT_TRUE(results(threads) == one) << threads;
  }
}

TEST(QuantizeTest, RefusesWeightsThatAreNotFinite) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    const TemporaryFolder folder;
    write_w1(folder / "m", [&](std::vector<float>& values, size_t columns) { values[3 * columns + 5] = bad; });
    expect_error([&] { write_model(*quantized(folder / "m", Scheme::kBlock, Fp8Modules::kFeedForward), folder / "q"); },
                 ExitCode::kData, {"model.layers.0.feed_forward.w1.weight", "[3, 5]", "finite"});
    EXPECT_FALSE(std::filesystem::exists(folder / "q"));
  }
}

TEST(DequantizeTest, IsTheProductRoundedOnce) {
  for (const std::string& golden_case : test::kFp8Cases) {
    // Each fp8 weight is followed by its scales, also where the file holds those of all experts together.
    const std::vector<HandTensor> tensors = test::golden_tensors(golden_case);
    const std::vector<HandTensor> stored = test::fp8_tensors(golden_case);
    const auto is_fp8 = [](const HandTensor& tensor) { return tensor.dtype == "F8_E4M3"; };
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      SCOPED_TRACE(fmt::format("{} in {}", golden_case, name(dtype)));
      const auto model = dequantize(open_model(golden_dir() / golden_case), dtype);
      EXPECT_EQ(model->config().quantization, Quantization{});
      EXPECT_FALSE(OrderedJson::parse(model->config_text()).contains("quantization_config"));
      size_t compared = 0;
      for (size_t i = 0; i < model->tensors().size(); ++i) {
        const SourceTensor& tensor = model->tensors()[i];
        const auto at = std::find_if(tensors.begin(), tensors.end(),
                                     [&](const HandTensor& t) { return t.name == tensor.spec.name; });
        ASSERT_NE(at, tensors.end()) << tensor.spec.name;
        if (!is_fp8(*at)) continue;
        const auto scale = at + 1;
        ASSERT_TRUE(scale != tensors.end() && scale->name == at->name + "_scale") << at->name;
        ++compared;
        EXPECT_EQ(tensor.dtype, dtype);
        const std::string bytes = test::tensor_bytes(*model, i);
        const std::vector<double> fp8 = values_of(*at), scales = values_of(*scale);
        for (size_t element = 0; element < fp8.size(); ++element) {
          const double exact = fp8[element] * scales[scale_index(*at, *scale, element)];  // of 28 bits at most
          float found = 0;
          convert(dtype, bytes.data() + element * size_bytes(dtype), DType::kF32, &found, 1);
          const double half = std::ldexp(dtype == DType::kF32    ? 0x1p-24
                                         : dtype == DType::kBf16 ? 0x1p-8
                                                                 : 0x1p-11,
                                         std::ilogb(exact == 0 ? 1 : exact));
          ASSERT_LE(std::fabs(static_cast<double>(found) - exact), std::max(half, dtype == DType::kF16 ? 0x1p-25 : 0))
              << at->name << " " << element;
        }
      }
      EXPECT_EQ(compared, std::count_if(stored.begin(), stored.end(), is_fp8));
    }
  }
}

// Products that fp32 rounds to the middle of two 16-bit numbers, from which the wrong one would be taken.
TEST(DequantizeTest, DoesNotRoundTwice) {
  const TemporaryFolder folder;
  std::vector<HandTensor> tensors = test::fp8_tensors("tiny-fp8-channel");
  const std::string name = "model.layers.0.feed_forward.w1.weight";
  HandTensor &weight = find_tensor(tensors, name), &scale = find_tensor(tensors, name + "_scale");
  std::vector<float> scales(192, 1.0f);
  const std::vector<float> hard = {0x1.c8e390p-1f, 0x1.cc71c6p-1f, 0x1.d38e38p-1f, 0x1.d71c72p-1f,   // for bf16
                                   0x1.c75556p-1f, 0x1.c7c71cp-1f, 0x1.c838e4p-1f, 0x1.c8aaaap-1f};  // for fp16
  std::copy(hard.begin(), hard.end(), scales.begin());
  scale.dtype = "F32";
  scale.bytes.assign(reinterpret_cast<const char*>(scales.data()), scales.size() * 4);
  for (size_t row = 0; row < hard.size(); ++row) weight.bytes[row * 128] = 0x39;  // 1.125
  test::write_folder(folder / "m", "tiny-fp8-channel", tensors);
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    const auto model = dequantize(open_model(folder / "m"), dtype);
    const auto at = std::find_if(model->tensors().begin(), model->tensors().end(),
                                 [&](const SourceTensor& tensor) { return tensor.spec.name == name; });
    const std::string bytes = test::tensor_bytes(*model, static_cast<size_t>(at - model->tensors().begin()));
    for (size_t row = 0; row < hard.size(); ++row) {
      uint16_t found = 0;
      std::memcpy(&found, bytes.data() + row * 128 * 2, 2);
      const auto distance = [&](int step) {
        const auto bits = static_cast<uint16_t>(found + step);
        float x = 0;
        convert(dtype, &bits, DType::kF32, &x, 1);
        return std::fabs(static_cast<double>(x) - 1.125 * static_cast<double>(hard[row]));
      };
      EXPECT_TRUE(distance(0) < distance(-1) && distance(0) < distance(1)) << lfm2::name(dtype) << " row " << row;
    }
  }
}

TEST(DequantizeTest, RefusesWhatATypeCannotHold) {
  const TemporaryFolder folder;
  std::vector<HandTensor> tensors = test::fp8_tensors("tiny-fp8-channel");
  const std::string name = "model.layers.0.feed_forward.w2.weight";
  HandTensor &weight = find_tensor(tensors, name), &scale = find_tensor(tensors, name + "_scale");
  const uint16_t large = 0x4700;  // 2^15 in bf16
  std::memcpy(scale.bytes.data() + 2 * 7, &large, 2);
  for (size_t i = 7 * 192; i < 8 * 192; ++i) weight.bytes[i] = 0x38;  // 1
  weight.bytes[7 * 192 + 11] = static_cast<char>(0xc0);               // -2
  test::write_folder(folder / "m", "tiny-fp8-channel", tensors);
  const auto read_all = [&](DType dtype) {
    const auto model = dequantize(open_model(folder / "m"), dtype);
    for (size_t i = 0; i < model->tensors().size(); ++i) test::tensor_bytes(*model, i);
  };
  expect_error([&] { read_all(DType::kF16); }, ExitCode::kData, {name, "-65536", "[7, 11]", "infinite in fp16"});
  read_all(DType::kBf16);
}

// Any part of a weight is the same as when it is read from the front.
TEST(DequantizeTest, ReadsAnyPart) {
  const auto model = dequantize(open_model(golden_dir() / "tiny-fp8-block"), DType::kF32);
  const std::string whole = test::tensor_bytes(*model, 2);
  std::string part(400, '\0');
  for (const uint64_t first : {uint64_t{5000}, uint64_t{0}, uint64_t{400}, uint64_t{120}}) {
    model->read(2, first, std::as_writable_bytes(std::span(part)));
    EXPECT_TRUE(part == whole.substr(first, 400)) << first;
  }
}

}  // namespace
}  // namespace lfm2
