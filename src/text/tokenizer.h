// Converts text to token ids and back, as `tokenizers` does for the tokenizer.json of LFM2, Llama 3 and GPT-2: added
// tokens, then regular expressions, then byte-level BPE.
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
  // The working memory of one thread, with its cache of recent words. For one tokenizer only.
  class Scratch;
  struct FreeScratch {
    void operator()(Scratch* scratch) const;
  };
  using ScratchPointer = std::unique_ptr<Scratch, FreeScratch>;

  // Error(kData) naming `what` for a broken file, and for every field with which ids would differ from those of
  // `tokenizers`.
  static Tokenizer parse(std::string_view json, const std::string& what);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Appends the ids of a text. Any bytes are accepted; invalid UTF-8 forms separate pieces. Many threads may call it at
  // once. Error(kData) for more than 1 GiB, or if the file's patterns need too long for the text (WorkLimit);
  // Error(kStopped) soon after `stop` becomes true.
  void encode(std::string_view text, bool add_special_tokens, std::vector<TokenId>& ids,
              const std::atomic<bool>* stop = nullptr) const;
  // The same with the thread's own scratch, which saves the search for a free one.
  void encode(std::string_view text, bool add_special_tokens, std::vector<TokenId>& ids, Scratch& scratch,
              const std::atomic<bool>* stop = nullptr) const;
  ScratchPointer make_scratch() const;

  // The bytes of the ids. Ids that a model generated may give parts of characters; StreamDecoder gives valid UTF-8. Ids
  // without a token give no bytes.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

  // One more than the largest id of a token.
  size_t size() const;
  // The id of the token with this text in the file.
  std::optional<TokenId> find(std::string_view text) const;
  // The bytes of an id; empty if it has no token.
  std::string_view bytes(TokenId id) const;
  bool is_special(TokenId id) const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lfm2
