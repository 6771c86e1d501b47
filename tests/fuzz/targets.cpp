// The table of all targets. What each does stands in a file beside this one, named by what it feeds.
#include "fuzz/targets.h"

#include <array>
#include <cstdlib>

#include "fuzz/grammar_targets.h"
#include "fuzz/http_target.h"
#include "fuzz/job_targets.h"
#include "fuzz/model_targets.h"
#include "fuzz/request_targets.h"
#include "fuzz/text_targets.h"

namespace lfm2::fuzz {

namespace {

constexpr std::array kTargets = {
    Target{"model_bin", model_bin},
    Target{"safetensors", safetensors},
    Target{"fp8_safetensors", fp8_safetensors},
    Target{"index_json", index_json},
    Target{"config_json", config_json},
    Target{"adapter", adapter},
    Target{"adapter_config", adapter_config},
    Target{"inputs_bin", inputs_bin},
    Target{"inputs_npy", inputs_npy},
    Target{"inputs_packed", inputs_packed},
    Target{"inputs_jsonl", inputs_jsonl},
    Target{"inputs_text", inputs_text},
    Target{"inputs_h5", inputs_h5},
    Target{"h5_scan", h5_scan},
    Target{"shards", shards},
    Target{"journal", journal},
    Target{"tokenizer_json", tokenizer_json},
    Target{"tokenizer_text", tokenizer_text},
    Target{"chat_template", chat_template},
    Target{"http", http_connection},
    Target{"multipart", multipart},
    Target{"openai_request", openai_request},
    Target{"embeddings_request", embeddings_request},
    Target{"call_reader", call_reader},
    Target{"thought_reader", thought_reader},
    Target{"schema", schema},
    Target{"pattern", pattern},
    Target{"gbnf", gbnf},
    Target{"call_list", call_list},
};

}  // namespace

std::span<const Target> targets() { return kTargets; }

const Target& find_target(std::string_view name) {
  for (const Target& target : kTargets)
    if (target.name == name) return target;
  std::abort();
}

}  // namespace lfm2::fuzz
