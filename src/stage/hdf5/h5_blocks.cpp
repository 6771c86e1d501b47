// Reads metadata blocks. Every byte that the scan reads is counted here, so that no file can make the scan endless.
#include "stage/hdf5/h5_blocks.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace lfm2::h5 {

namespace {

// Limit of one scan; a shard of 10,000 tensors needs 5 MB.
constexpr uint64_t kMaxMetadata = uint64_t{1} << 28;

uint64_t little_endian(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint64_t>(bytes[i]);
  return value;
}

}  // namespace

size_t bytes_for(uint64_t limit) { return limit == 0 ? 1 : (static_cast<size_t>(std::bit_width(limit)) + 7) / 8; }

uint32_t metadata_checksum(std::span<const std::byte> bytes) {
  uint32_t a = 0xdeadbeef + static_cast<uint32_t>(bytes.size()), b = a, c = a;
  const auto word = [&](size_t at) {  // the 32-bit word at byte `at`; bytes past the end are zeros
    const size_t count = at < bytes.size() ? std::min<size_t>(4, bytes.size() - at) : 0;
    return count == 0 ? 0 : static_cast<uint32_t>(little_endian(bytes.subspan(at, count)));
  };
  size_t at = 0;
  for (; bytes.size() - at > 12; at += 12) {
    a += word(at);
    b += word(at + 4);
    c += word(at + 8);
    a = (a - c) ^ std::rotl(c, 4), c += b;
    b = (b - a) ^ std::rotl(a, 6), a += c;
    c = (c - b) ^ std::rotl(b, 8), b += a;
    a = (a - c) ^ std::rotl(c, 16), c += b;
    b = (b - a) ^ std::rotl(a, 19), a += c;
    c = (c - b) ^ std::rotl(b, 4), b += a;
  }
  if (at == bytes.size()) return c;
  a += word(at);
  b += word(at + 4);
  c += word(at + 8);
  c = (c ^ b) - std::rotl(b, 14);
  a = (a ^ c) - std::rotl(c, 11);
  b = (b ^ a) - std::rotl(a, 25);
  c = (c ^ b) - std::rotl(b, 16);
  a = (a ^ c) - std::rotl(c, 4);
  b = (b ^ a) - std::rotl(a, 14);
  c = (c ^ b) - std::rotl(b, 24);
  return c;
}

void Cursor::refuse(const std::string& message) const {
  throw Error(ExitCode::kData, fmt::format("{}: {}", where_, message));
}

std::span<const std::byte> Cursor::read(size_t count) {
  if (count > left()) refuse(fmt::format("{} bytes expected at byte {} of {}", count, position_, bytes_.size()));
  position_ += count;
  return bytes_.subspan(position_ - count, count);
}

uint64_t Cursor::number(size_t bytes) {
  expect(bytes <= 8, "Cursor::number: longer than 8 bytes");
  return little_endian(read(bytes));
}

std::string Cursor::text(size_t bytes) {
  const std::span<const std::byte> taken = read(bytes);
  return {reinterpret_cast<const char*>(taken.data()), taken.size()};
}

void Cursor::expect_signature(std::string_view signature, std::optional<uint8_t> version) {
  if (text(signature.size()) != signature) refuse(fmt::format("the signature {} is missing", signature));
  if (version) expect_version(*version);
}

void Cursor::expect_version(uint8_t version) {
  if (const uint8_t found = u8(); found != version) refuse(fmt::format("version {}, expected {}", found, version));
}

std::string Blocks::where(uint64_t address, const std::string& what) const {
  return fmt::format("{}: metadata: {} at byte {}", file_.path().string(), what, address);
}

void Blocks::refuse(uint64_t address, const std::string& what, const std::string& message) const {
  throw Error(ExitCode::kData, fmt::format("{}: {}", where(address, what), message));
}

void Blocks::charge(uint64_t bytes, uint64_t address, const std::string& what) {
  if (bytes > kMaxMetadata - read_bytes_)
    refuse(address, what, fmt::format("more than {} bytes of metadata", kMaxMetadata));
  read_bytes_ += bytes;
}

Block Blocks::peek(uint64_t address, uint64_t bytes, const std::string& what) {
  if (address >= file_.size()) refuse(address, what, fmt::format("the file ends at byte {}", file_.size()));
  Block block(std::min(bytes, file_.size() - address));
  charge(block.size(), address, what);
  file_.read(address, block);
  return block;
}

void Blocks::claim(uint64_t address, uint64_t bytes, const std::string& what) {
  if (address > file_.size() || bytes > file_.size() - address)
    refuse(address, what, fmt::format("{} bytes, but the file ends at byte {}", bytes, file_.size()));
  if (bytes == 0) return;
  const auto overlap = [&](const Extent& other) {
    refuse(address, what,
           fmt::format("its {} bytes overlap {}, which has {} from byte {} on", bytes, other.what, other.bytes,
                       other.first));
  };
  const auto after = extents_.lower_bound(address);
  if (after != extents_.end() && after->second.first < address + bytes) overlap(after->second);
  if (after != extents_.begin() && std::prev(after)->second.end() > address) overlap(std::prev(after)->second);
  extents_.emplace_hint(after, address, Extent{address, bytes, what});
}

Block Blocks::read(uint64_t address, uint64_t bytes, const std::string& what) {
  claim(address, bytes, what);
  charge(bytes, address, what);
  Block block(bytes);
  file_.read(address, block);
  return block;
}

void Blocks::verify(std::span<const std::byte> block, uint32_t stored, uint64_t address,
                    const std::string& what) const {
// Fuzzing accepts any checksum, because mutated input would otherwise never pass this point.
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  stored = metadata_checksum(block);
#endif
  if (const uint32_t found = metadata_checksum(block); found != stored)
    refuse(address, what, fmt::format("damaged: checksum {:08x}, expected {:08x}", found, stored));
}

Block Blocks::read_checked(uint64_t address, uint64_t bytes, const std::string& what) {
  expect(bytes >= kChecksumBytes, "Blocks::read_checked: no room for a checksum");
  Block block = read(address, bytes, what);
  const std::span<const std::byte> all(block);
  verify(all.first(all.size() - kChecksumBytes), static_cast<uint32_t>(little_endian(all.last(kChecksumBytes))),
         address, what);
  return block;
}

std::vector<Extent> Blocks::extents() const {
  std::vector<Extent> all;
  for (const auto& [first, extent] : extents_) all.push_back(extent);
  return all;
}

}  // namespace lfm2::h5
