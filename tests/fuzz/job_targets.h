// The entry points for the files of a job: its input in each form, HDF5, the journal.
#pragma once

#include <cstddef>
#include <span>

namespace lfm2::fuzz {

void inputs_bin(std::span<const std::byte> bytes);
void inputs_npy(std::span<const std::byte> bytes);
void inputs_packed(std::span<const std::byte> bytes);
void inputs_jsonl(std::span<const std::byte> bytes);
void inputs_text(std::span<const std::byte> bytes);
void inputs_h5(std::span<const std::byte> bytes);
void h5_scan(std::span<const std::byte> bytes);
void journal(std::span<const std::byte> bytes);

}  // namespace lfm2::fuzz
