#include "stage/job/chat_job.h"

#include "base/stop.h"
#include "stage/job/conversation.h"

namespace lfm2 {

// One sequence, which may become as long as the model allows.
GenerationJob::PromptSizes ChatJob::measure_prompts(int64_t) const {
  const int64_t positions = config().max_positions, page = std::min(options_.generation.page, positions);
  PromptSizes sizes{.tokens = positions,
                    .sequences = 1,
                    .new_tokens = positions,
                    .longest = positions,
                    .page = page,
                    .pages = pages_for(positions, page)};
  note_rule(sizes, defaults().of_text);
  return sizes;
}

std::unique_ptr<RequestSource> ChatJob::make_requests() const {
  if (!is_first()) return nullptr;
  Request each = defaults().of_text;
  if (!options_.generation.sampling.max_new && !text_.generation_config().max_new)
    each.max_new = config().max_positions;
  return std::make_unique<Conversation>(*text_.model(), std::move(each), positions(), text_.now(),
                                        Conversation::Place{.in = stdin, .out = stdout, .interrupts = interrupts});
}

}  // namespace lfm2
