// The command verify: every checksum of a folder of shards, and every element compared with another model.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/bytes_text.h"
#include "base/error.h"
#include "stage/shards/overflow.h"
#include "weights-tools/commands/commands.h"
#include "weights-tools/commands/limited_child.h"
#include "weights-tools/model/adapted_source.h"
#include "weights-tools/model/copy.h"
#include "weights-tools/model/dequantized_source.h"
#include "weights-tools/model/interrupt.h"
#include "weights-tools/model/text_files.h"

namespace lfm2 {

namespace {

constexpr size_t kVerifiedBytes = size_t{8} << 20;

double element_value(DType dtype, const std::byte* at) {
  if (dtype == DType::kF8) return to_float(F8{std::to_integer<uint8_t>(*at)});
  float value = 0;
  convert(dtype, at, DType::kF32, &value, 1);
  return value;
}

[[noreturn]] void report_difference(const ModelSource& shards, const ModelSource& other, size_t tensor,
                                    uint64_t first_byte, std::span<const std::byte> ours,
                                    std::span<const std::byte> theirs) {
  const SourceTensor& spec = shards.tensors()[tensor];
  const size_t element_bytes = size_bytes(spec.dtype);
  size_t at = 0;
  while (std::memcmp(ours.data() + at, theirs.data() + at, element_bytes) == 0) at += element_bytes;
  throw Error(ExitCode::kData,
              fmt::format("{}: tensor {} differs first at {}: {:.9g}, expected {:.9g} as in {}", shards.file_of(tensor),
                          spec.spec.name, index_text((first_byte + at) / element_bytes, spec.spec.dims),
                          element_value(spec.dtype, ours.data() + at), element_value(spec.dtype, theirs.data() + at),
                          other.file_of(tensor)));
}

// If the shards have dequantised values of the other model's fp8 weights, dequantises these to the same type.
// Weights that adapters will change become fp32, as in split.
std::unique_ptr<ModelSource> in_form_of(const ModelSource& shards, std::unique_ptr<ModelSource> other, bool adapted) {
  if (!holds_fp8(*other) || shards.config().quantization.scheme != Quantization::Scheme::kNone) return other;
  const auto fp8 = std::find_if(other->tensors().begin(), other->tensors().end(),
                                [](const SourceTensor& tensor) { return tensor.dtype == DType::kF8; });
  const auto ours = std::find_if(shards.tensors().begin(), shards.tensors().end(),
                                 [&](const SourceTensor& tensor) { return tensor.spec.name == fp8->spec.name; });
  return ours == shards.tensors().end() ? std::move(other)
                                        : dequantize(std::move(other), adapted ? DType::kF32 : ours->dtype);
}

void expect_same_adapters(const ModelSource& shards, const ModelSource& other, const VerifyOptions& options) {
  if (shards.adapters() == other.adapters()) return;
  const auto text = [](const std::vector<AdapterId>& adapters) {
    return adapters.empty() ? "none" : adapters_text(adapters);
  };
  throw Error(ExitCode::kData, fmt::format("{}: the merged adapters are {}, expected {} as by --adapter", options.model,
                                           text(shards.adapters()), text(other.adapters())));
}

// The same weights must be fp8 in both.
void expect_same_tensors(const ModelSource& shards, const ModelSource& other) {
  for (size_t i = 0; i < std::min(shards.tensors().size(), other.tensors().size()); ++i) {
    const SourceTensor &ours = shards.tensors()[i], &theirs = other.tensors()[i];
    const bool fp8 = ours.dtype == DType::kF8;
    if (fp8 != (theirs.dtype == DType::kF8))
      throw Error(ExitCode::kData, fmt::format("{}: tensor {} is {}, expected {} as in {}", shards.file_of(i),
                                               ours.spec.name, name(ours.dtype), name(theirs.dtype), other.file_of(i)));
  }
}

// Both are read in the shards' type, so that the other model's elements are converted as split converts them.
void compare_tensor(const ModelSource& shards, const ModelSource& other, size_t tensor, std::span<std::byte> ours,
                    std::span<std::byte> theirs, Progress& progress, NonFinite& non_finite) {
  const DType dtype = shards.tensors()[tensor].dtype;
  TensorReader our_reader(shards, tensor, dtype, &non_finite), their_reader(other, tensor, dtype);
  for (uint64_t done = 0; our_reader.left_bytes() > 0;) {
    throw_if_interrupted();
    const size_t count = our_reader.next(ours);
    expect(their_reader.next(theirs) == count, "verify: tensors of one shape have different sizes");
    if (std::memcmp(ours.data(), theirs.data(), count) != 0)
      report_difference(shards, other, tensor, done, ours.first(count), theirs.first(count));
    done += count;
    progress.add(count);
  }
}

void check_tensor(const ModelSource& shards, size_t tensor, std::span<std::byte> piece, Progress& progress,
                  NonFinite& non_finite) {
  TensorReader reader(shards, tensor, shards.tensors()[tensor].dtype, &non_finite);
  while (reader.left_bytes() > 0) {
    throw_if_interrupted();
    progress.add(reader.next(piece));
  }
}

// Limits of the child that leave time for a slow disk.
ChildLimits limits_for(const VerifyOptions& options) {
  constexpr uint64_t kSlowBytesPerSecond = 20'000'000, kMaxSeconds = 4 * 3600;
  uint64_t bytes = 0;
  std::error_code ignored;
  const std::filesystem::path path = options.model;
  if (std::filesystem::is_directory(path, ignored)) {
    for (std::filesystem::directory_iterator at(path, ignored), end; !ignored && at != end; at.increment(ignored))
      if (at->is_regular_file(ignored)) bytes += std::min(at->file_size(ignored), uint64_t{1} << 50);
  } else if (std::filesystem::is_regular_file(path, ignored)) {
    bytes = std::filesystem::file_size(path, ignored);
  }
  ChildLimits limits;
  limits.cpu_seconds = std::min(60 + bytes / kSlowBytesPerSecond, kMaxSeconds);
  limits.wall_seconds = 2 * limits.cpu_seconds;
  return limits;
}

// Checks the text files that shards list, and returns their part of the line that lists what was checked.
std::string verify_text_files(const ModelSource& model, const VerifyOptions& options) {
  if (model.form() != "shards") return "";
  const size_t count = read_text_files(model, options.model).size();
  return count == 0 ? "" : fmt::format(", {} text file{}", count, count == 1 ? "" : "s");
}

// Checks the model, and returns a line that lists what was checked.
std::string verify(const VerifyOptions& options, ProgressMode mode) {
  const bool own_config = options.config && !options.against;
  const auto model = options.untrusted
                         ? open_model(options.model, own_config ? options.config : std::nullopt, FolderForm::kShards)
                         : open_shards(options.model);
  if (own_config && model->form() == "shards")
    throw Error(ExitCode::kUsage, "--config describes the model of --against, which is not given");
  if (!options.against && !options.adapters.empty())
    throw Error(ExitCode::kUsage, "--adapter changes the model of --against, which is not given");
  std::unique_ptr<ModelSource> other;
  if (options.against) {
    other = open_model(*options.against, options.config);
    const int threads = options.untrusted ? 1 : 0;  // the child process may not create any
    other = adapt(in_form_of(*model, std::move(other), !options.adapters.empty()), options.adapters, threads);
    expect_same_adapters(*model, *other, options);
    if (other->config() != model->config())
      throw Error(ExitCode::kData,
                  fmt::format("{}: the configuration differs from that of {}", options.model, *options.against));
    expect_same_tensors(*model, *other);
  }
  const std::string text_files = verify_text_files(*model, options);
  std::vector<std::byte> ours(kVerifiedBytes), theirs(other ? kVerifiedBytes : 0);
  NonFinite non_finite;
  {
    Progress progress("verify", model->total_bytes(), Progress::Unit::kBytes, mode);
    for (size_t tensor = 0; tensor < model->tensors().size(); ++tensor) {
      if (other)
        compare_tensor(*model, *other, tensor, ours, theirs, progress, non_finite);
      else
        check_tensor(*model, tensor, ours, progress, non_finite);
    }
  }
  return fmt::format(
      "{}: {} tensors, {}{}: {}{}{}", options.model, model->tensors().size(), bytes_text(model->total_bytes()),
      text_files,
      model->form() == "shards" ? "every checksum is right" : "well formed, in a form that has no checksums",
      other ? fmt::format(", every element is that of {}", *options.against) : std::string(),
      non_finite.count > 0 ? "; " + non_finite.text() : std::string());
}

}  // namespace

void run_verify(const VerifyOptions& options, const Console& console) {
  std::string found;
  if (options.untrusted) {  // the child must not write, not even progress to a file
    const ProgressMode mode = ::isatty(STDERR_FILENO) != 0 ? console.progress : ProgressMode::kOff;
    ChildLimits limits = limits_for(options);
    limits.progress = mode != ProgressMode::kOff;
    found = run_limited(options.model, limits, [&] { return verify(options, mode); });
  } else {
    found = verify(options, console.progress);
  }
  if (!console.quiet) fmt::print("{}\n", found);
}

}  // namespace lfm2
