#include "stage/io/lines/unpacker.h"

#include <zlib.h>
#include <zstd.h>

#include "base/error.h"

namespace lfm2 {

namespace {

class GzipUnpacker : public Unpacker {
 public:
  GzipUnpacker(std::string name, Read read) : Unpacker(std::move(name), std::move(read)) {
    constexpr int kGzipAlone = MAX_WBITS + 16;
    if (::inflateInit2(&stream_, kGzipAlone) != Z_OK) throw Error(ExitCode::kUnavailable, "zlib: no memory");
  }
  ~GzipUnpacker() override { ::inflateEnd(&stream_); }

 private:
  bool step(std::span<const char>& packed, std::span<char>& into) override {
    if (at_end_ && packed.empty()) return true;
    if (at_end_) ::inflateReset(&stream_);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream_.avail_in = static_cast<uInt>(packed.size());
    stream_.next_out = reinterpret_cast<Bytef*>(into.data());
    stream_.avail_out = static_cast<uInt>(into.size());
    const int result = ::inflate(&stream_, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
      refuse(stream_.msg != nullptr ? stream_.msg : "damaged");
    packed = packed.last(stream_.avail_in);
    into = into.last(stream_.avail_out);
    return at_end_ = result == Z_STREAM_END;
  }

  z_stream stream_{};
  bool at_end_ = false;
};

class ZstdUnpacker : public Unpacker {
 public:
  ZstdUnpacker(std::string name, Read read) : Unpacker(std::move(name), std::move(read)) {
    if (stream_ == nullptr) throw Error(ExitCode::kUnavailable, "zstd: no memory");
  }

 private:
  bool step(std::span<const char>& packed, std::span<char>& into) override {
    ZSTD_inBuffer in{packed.data(), packed.size(), 0};
    ZSTD_outBuffer out{into.data(), into.size(), 0};
    const size_t result = ::ZSTD_decompressStream(stream_.get(), &out, &in);
    if (::ZSTD_isError(result) != 0) refuse(::ZSTD_getErrorName(result));
    packed = packed.subspan(in.pos);
    into = into.subspan(out.pos);
    return result == 0;
  }

  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_{::ZSTD_createDStream(), ::ZSTD_freeDStream};
};

}  // namespace

Unpacker::Unpacker(std::string name, Read read) : name_(std::move(name)), read_(std::move(read)), buffer_(1 << 18) {}

void Unpacker::refuse(const char* reason) const {
  throw Error(ExitCode::kData, fmt::format("{} cannot be unpacked: {}", name_, reason));
}

size_t Unpacker::unpack(std::span<char> into) {
  for (std::span<char> rest = into;;) {
    const size_t packed = packed_.size();
    const bool ended = step(packed_, rest);
    if (ended || packed_.size() < packed || rest.size() < into.size()) is_whole_ = ended;
    if (rest.size() < into.size()) return into.size() - rest.size();
    if (!packed_.empty()) continue;
    packed_ = std::span<const char>(buffer_).first(read_(buffer_));
    if (!packed_.empty()) continue;
    if (!is_whole_) refuse("the file ends within it");
    return 0;
  }
}

std::unique_ptr<Unpacker> make_unpacker(const std::filesystem::path& path, Unpacker::Read read) {
  if (path.extension() == ".gz") return std::make_unique<GzipUnpacker>(path.string() + ": gzip", std::move(read));
  if (path.extension() == ".zst") return std::make_unique<ZstdUnpacker>(path.string() + ": Zstandard", std::move(read));
  return nullptr;
}

}  // namespace lfm2
