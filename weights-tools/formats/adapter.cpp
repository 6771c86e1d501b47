// The files of an adapter's folder. adapter_match.cpp finds the weights that its tensors change.
#include "weights-tools/formats/adapter.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checksum.h"
#include "base/error.h"

namespace lfm2 {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;
constexpr size_t kHashedBytes = size_t{1} << 20;
constexpr const char* kConfigName = "adapter_config.json";
constexpr const char* kWeightsName = "adapter_model.safetensors";
constexpr const char* kPickleName = "adapter_model.bin";

std::string checksum_of_file(const CheckedFile& file) {
  Checksum checksum;
  std::vector<std::byte> piece(kHashedBytes);
  for (uint64_t done = 0; done < file.size(); done += piece.size()) {
    piece.resize(std::min<uint64_t>(piece.size(), file.size() - done));
    file.read(done, piece);
    checksum.add(piece);
  }
  return checksum.hex();
}

CheckedFile open_weights(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kWeightsName, error) && fs::exists(folder / kPickleName, error))
    throw Error(ExitCode::kData,
                fmt::format("{}: is a pickle, whose reader would run code from it, expected {}: save the "
                            "adapter again with save_pretrained() of a newer PEFT",
                            (folder / kPickleName).string(), kWeightsName));
  return CheckedFile(folder / kWeightsName);
}

}  // namespace

Adapter::Adapter(const fs::path& folder, const ModelConfig& model) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw Error(ExitCode::kNoInput, fmt::format("--adapter {}: no such folder, expected one with {} and {}",
                                                folder.string(), kConfigName, kWeightsName));
  const fs::path config_path = folder / kConfigName;
  const std::string config_text = read_text_file(config_path, kMaxConfigBytes);
  const AdapterConfig config(config_text, config_path.string());
  file_ = open_weights(folder);
  tensors_ = read_safetensors_header(file_, 0);
  updates_ = match_adapter(tensors_, config, model, file_.path().string());
  id_ = {fs::canonical(folder).filename().string(), checksum_of(config_text), checksum_of_file(file_)};
}

void Adapter::read(const std::string& tensor, uint64_t first, std::span<float> into) const {
  const RawTensor& raw = tensors_.at(tensor);
  const size_t element_bytes = size_bytes(raw.dtype);
  std::vector<std::byte> bytes(into.size() * element_bytes);
  file_.read(raw.offset + first * element_bytes, bytes);
  convert(raw.dtype, bytes.data(), DType::kF32, into.data(), into.size());
}

std::vector<float> Adapter::read(const std::string& tensor) const {
  const RawTensor& raw = tensors_.at(tensor);
  std::vector<float> values(raw.bytes / size_bytes(raw.dtype));
  read(tensor, 0, values);
  return values;
}

}  // namespace lfm2
