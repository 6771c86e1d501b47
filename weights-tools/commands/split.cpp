// The commands split, synth, quantize and merge: each reads one model and writes one.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "base/checked_file.h"
#include "base/error.h"
#include "base/json/json.h"
#include "base/standard_streams.h"
#include "stage/shards/shard_format.h"
#include "text/tokenizer.h"
#include "weights-tools/commands/commands.h"
#include "weights-tools/commands/quantize_report.h"
#include "weights-tools/commands/stages.h"
#include "weights-tools/formats/shard_writer.h"
#include "weights-tools/model/adapted_source.h"
#include "weights-tools/model/copy.h"
#include "weights-tools/model/dequantized_source.h"
#include "weights-tools/model/quantizing_source.h"
#include "weights-tools/model/synth.h"
#include "weights-tools/model/text_files.h"

namespace lfm2 {

namespace {

void transfer(const std::string& title, const ModelSource& source, ModelWriter& writer, const std::string& out,
              const Console& console) {
  const auto start = std::chrono::steady_clock::now();
  NonFinite non_finite;
  {
    Progress progress(title, writer.total_bytes(), Progress::Unit::kBytes, console.progress);
    non_finite = copy_model(source, writer, progress);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double gigabytes = static_cast<double>(writer.total_bytes()) / 1e9;
  if (!console.quiet)
    say(fmt::format("{}: {} tensors, {:.3f} GB in {:.2f} s, {:.2f} GB/s: {}", title, writer.tensors().size(), gigabytes,
                    seconds, gigabytes / seconds, out));
  if (!console.quiet && !source.left_out().empty())
    say(fmt::format("{}: left out {} scale{} of weights that are not fp8: {}", title, source.left_out().size(),
                    source.left_out().size() == 1 ? "" : "s", fmt::join(source.left_out(), ", ")));
  if (!console.quiet && non_finite.count > 0) say(fmt::format("{}: {}", title, non_finite.text()));
}

// Refuses text files that a job would refuse later. Chat templates are copied unchecked.
void check_text_file(const TextFile& file) {
  const std::string what = file.path.string();
  if (file.name == shard::kTokenizerFile) {
    Tokenizer::parse(file.content, what);
  } else if (file.name == shard::kGenerationConfigFile) {
    const Json json = parse_json(file.content, what);
    if (!json.is_object())
      throw Error(ExitCode::kData, fmt::format("{}: {}, expected a JSON object", what, json_excerpt(json)));
  }
}

// A training run saves the tokenizer and the chat template beside its adapter. Those of the model are copied, so a
// difference is reported.
void report_other_text_files(const std::string& adapter, const std::vector<TextFile>& copied) {
  for (const std::string_view name : shard::kTextFiles) {
    const std::filesystem::path path = std::filesystem::path(adapter) / name;
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    const bool same = std::any_of(copied.begin(), copied.end(), [&](const TextFile& file) {
      return file.name == name && file.content == read_text_file(path, shard::kMaxTextFileBytes);
    });
    if (!same)
      say(
          fmt::format("split: {} is not that of the model and is not copied: lfm2_stage --tokenizer {} uses the files "
                      "there",
                      path.string(), adapter));
  }
}

// Even with --force, a command must not replace a file that it reads.
void expect_another(const std::string& in, const std::filesystem::path& replaced, const std::string& out) {
  std::error_code error;
  if (std::filesystem::equivalent(in, replaced, error))
    throw Error(ExitCode::kUsage,
                fmt::format("--out {}: would replace {}, which is read, expected another name", out, in));
}

std::filesystem::path config_beside(const std::filesystem::path& file) { return file.parent_path() / "config.json"; }

// A quantised model has another config.json than its source, so both cannot be in one folder.
void expect_source_kept(const ModelSource& source, const QuantizeOptions& options) {
  const std::filesystem::path file = model_file(options.out);
  expect_another(options.model, options.out, options.out);
  if (options.config) expect_another(*options.config, config_beside(file), options.out);
  for (size_t i = 0; i < source.tensors().size(); ++i) expect_another(source.file_of(i), file, options.out);
  const std::filesystem::path read = source.file_of(0);
  std::error_code error;
  if (source.form() != "shards" &&
      std::filesystem::equivalent(read.parent_path() / ".", file.parent_path() / ".", error))
    throw Error(ExitCode::kUsage, fmt::format("--out {}: would write a config.json for fp8 beside {}, which is read, "
                                              "expected another folder",
                                              options.out, read.string()));
}

Quantization::Scheme scheme_of(const std::string& text) {
  return text == "block" ? Quantization::Scheme::kBlock : Quantization::Scheme::kChannel;
}

Fp8Modules modules_of(const std::string& text) { return text == "all" ? Fp8Modules::kAll : Fp8Modules::kFeedForward; }

void expect_form_with_fp8(const std::string& out) {
  if (std::filesystem::path(out).extension() == ".bin")
    throw Error(ExitCode::kUsage,
                fmt::format("--out {}: model.bin holds fp32 only, expected .safetensors or a folder", out));
}

}  // namespace

void run_split(const SplitOptions& options, const Console& console) {
  const std::optional<DType> dtype = wanted_dtype(options.dtype);
  auto source = open_model(options.model, options.config);
  if (dtype && holds_fp8(*source))
    source = dequantize(std::move(source), options.adapters.empty() ? *dtype : DType::kF32);
  source = adapt(std::move(source), options.adapters);
  if (source->form() == "shards") expect_another(options.model, options.out, options.out);
  for (const std::string& adapter : options.adapters) expect_another(adapter, options.out, options.out);
  const std::vector<TextFile> text_files = read_text_files(*source, options.model, options.config);
  for (const TextFile& file : text_files) check_text_file(file);
  if (!console.quiet)
    for (const std::string& adapter : options.adapters) report_other_text_files(adapter, text_files);
  ShardWriter writer(*source, choose_stages(source->config().layers, options.stages, options.layers), dtype,
                     options.out, options.force, text_files);
  transfer("split", *source, writer, options.out, console);
}

void run_synth(const SynthOptions& options, const Console& console) {
  const bool fp8 = options.dtype == "fp8";
  if (fp8) expect_form_with_fp8(options.out);
  const std::optional<DType> dtype = fp8 ? DType::kBf16 : wanted_dtype(options.dtype);
  if (!dtype)
    throw Error(ExitCode::kUsage, "--dtype is \"keep\", but synth has nothing to keep: fp32, bf16, fp16 or fp8");
  expect_another(options.config, model_file(options.out), options.out);
  if (fp8) expect_another(options.config, config_beside(model_file(options.out)), options.out);
  std::unique_ptr<ModelSource> source =
      std::make_unique<SynthSource>(named_config_text(options.config), options.config, options.seed, *dtype);
  if (fp8) source = quantize(std::move(source), scheme_of(options.scheme), modules_of(options.modules), {});
  const auto writer = create_model(*source, options.out, options.force);
  transfer("synth", *source, *writer, options.out, console);
}

void run_quantize(const QuantizeOptions& options, const Console& console) {
  expect_form_with_fp8(options.out);
  auto source = open_model(options.model, options.config);
  expect_source_kept(*source, options);
  const std::vector<TextFile> text_files = read_text_files(*source, options.model, options.config);
  QuantizeReport report;
  source = quantize(std::move(source), scheme_of(options.scheme), modules_of(options.modules),
                    [&](const TensorSpec& weight, const Fp8Error& error) { report.add(weight, error); });
  const auto writer = create_model(*source, options.out, options.force, text_files);
  transfer("quantize", *source, *writer, options.out, console);
  if (!console.quiet) report.print();
}

void run_merge(const MergeOptions& options, const Console& console) {
  auto source = open_shards(options.shards);
  // A model.bin contains only fp32.
  if (std::filesystem::path(options.out).extension() == ".bin" && holds_fp8(*source))
    source = dequantize(std::move(source), DType::kF32);
  const auto writer = create_model(*source, options.out, options.force, read_text_files(*source, options.shards));
  transfer("merge", *source, *writer, options.out, console);
}

}  // namespace lfm2
