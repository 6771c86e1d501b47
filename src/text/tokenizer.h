// Text to token ids and back, as `tokenizers` does it for a tokenizer.json of the kind that LFM2, Llama 3 and GPT-2
// have: added tokens, then regular expressions, then byte-level BPE.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace lfm2 {

class Tokenizer {
 public:
  // What one thread needs for encoding, with its memory of recent words. For one tokenizer only.
  class Scratch;
  struct FreeScratch {
    void operator()(Scratch* scratch) const;
  };
  using ScratchPointer = std::unique_ptr<Scratch, FreeScratch>;

  // Error(kData) naming `what` for what is broken, and for every field whose ids would differ from those of tokenizers.
  static Tokenizer parse(std::string_view json, const std::string& what);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Appends the ids of a text. Any bytes are accepted; those that are not UTF-8 are pieces of their own. Many threads
  // may call at once. Error(kData) for more than 1 GiB, or where the file needs too long for the text (WorkLimit);
  // Error(kStopped) soon after `stop` became true.
  void encode(std::string_view text, bool add_special_tokens, std::vector<TokenId>& ids,
              const std::atomic<bool>* stop = nullptr) const;
  // The same with the scratch of a thread, which saves the search for a free one.
  void encode(std::string_view text, bool add_special_tokens, std::vector<TokenId>& ids, Scratch& scratch,
              const std::atomic<bool>* stop = nullptr) const;
  ScratchPointer make_scratch() const;

  // The bytes of the ids: the encoded text again, or parts of characters where a model made the ids up. Ids without a
  // token give nothing. StreamDecoder gives valid UTF-8.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

  // One more than the largest id of a token.
  size_t size() const;
  // The id of a token by its text as it stands in the file.
  std::optional<TokenId> find(std::string_view text) const;
  // What an id stands for; nothing where it has no token.
  std::string_view bytes(TokenId id) const;
  bool is_special(TokenId id) const;
  // The id that encode() puts first with add_special_tokens, if there is one.
  std::optional<TokenId> bos() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lfm2
