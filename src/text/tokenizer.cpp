// Combines the steps: added tokens, pieces, tokens of pieces, and the tokens around a text.
#include "text/tokenizer.h"

#include <fmt/format.h>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/piece_encoder.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_file.h"

namespace lfm2 {

namespace {
constexpr size_t kMaxText = size_t{1} << 30;
}

class Tokenizer::Scratch {
 public:
  PreTokenizer::Scratch pieces;
  PieceEncoder::Scratch encoder;
};

void Tokenizer::FreeScratch::operator()(Scratch* scratch) const { delete scratch; }

struct Tokenizer::State {
  State(TokenizerFile file, const std::string& name)
      : what(name),
        vocabulary(std::move(file.vocabulary)),
        added(std::move(file.added_tokens)),
        pre_tokenizer(file.patterns, name),
        encoder(vocabulary, std::move(file.merges), file.ignore_merges),
        special(vocabulary.size()),
        before(std::move(file.before)),
        after(std::move(file.after)) {
    for (const AddedToken& token : added.list()) special[static_cast<size_t>(token.id)] = token.special;
  }

  const std::string what;
  Vocabulary vocabulary;
  AddedTokens added;
  PreTokenizer pre_tokenizer;
  PieceEncoder encoder;
  std::vector<bool> special;  // by id
  std::vector<TokenId> before, after;

  // Scratch for callers without their own. It grows to the largest number of concurrent callers.
  std::mutex mutex;
  std::vector<ScratchPointer> free;
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::parse(std::string_view json, const std::string& what) {
  return Tokenizer(std::make_unique<State>(parse_tokenizer_file(json, what), what));
}

Tokenizer::ScratchPointer Tokenizer::make_scratch() const { return ScratchPointer(new Scratch()); }

void Tokenizer::encode(std::string_view text, bool add_special_tokens, std::vector<TokenId>& ids,
                       const std::atomic<bool>* stop) const {
  ScratchPointer scratch;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->free.empty()) {
      scratch = std::move(state_->free.back());
      state_->free.pop_back();
    }
  }
  if (!scratch) scratch = make_scratch();
  encode(text, add_special_tokens, ids, *scratch, stop);  // if this throws, the scratch is destroyed
  const std::lock_guard lock(state_->mutex);
  state_->free.push_back(std::move(scratch));
}

void Tokenizer::encode(std::string_view text, bool add_special_tokens, std::vector<TokenId>& ids, Scratch& scratch,
                       const std::atomic<bool>* stop) const {
  if (text.size() > kMaxText)
    throw Error(ExitCode::kData, fmt::format("a text of {} bytes, at most {} can be encoded", text.size(), kMaxText));
  if (add_special_tokens) ids.insert(ids.end(), state_->before.begin(), state_->before.end());
  WorkLimit limit(state_->what, text.size(), stop);
  state_->added.split(
      text, limit,
      [&](std::string_view part) {
        state_->pre_tokenizer.split(part, scratch.pieces, limit, [&](std::string_view piece) {
          state_->encoder.encode(piece, scratch.encoder, ids);
        });
      },
      [&](TokenId id) { ids.push_back(id); });
  if (add_special_tokens) ids.insert(ids.end(), state_->after.begin(), state_->after.end());
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string text;
  for (const TokenId id : ids)
    if (!skip_special_tokens || !is_special(id)) text += bytes(id);
  return text;
}

size_t Tokenizer::size() const { return state_->vocabulary.size(); }
std::optional<TokenId> Tokenizer::find(std::string_view text) const { return state_->vocabulary.find(text); }
std::string_view Tokenizer::bytes(TokenId id) const { return state_->vocabulary.bytes(id); }

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < state_->special.size() && state_->special[static_cast<size_t>(id)];
}

}  // namespace lfm2
