// The entry points for models: checkpoints, their configuration, adapters, shards.
#pragma once

#include <cstddef>
#include <span>

namespace lfm2::fuzz {

void model_bin(std::span<const std::byte> bytes);
void safetensors(std::span<const std::byte> bytes);
void fp8_safetensors(std::span<const std::byte> bytes);
void index_json(std::span<const std::byte> bytes);
void adapter(std::span<const std::byte> bytes);
void adapter_config(std::span<const std::byte> bytes);
void config_json(std::span<const std::byte> bytes);
void shards(std::span<const std::byte> bytes);

}  // namespace lfm2::fuzz
