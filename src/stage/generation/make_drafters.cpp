#include "stage/generation/make_drafters.h"

#include <fmt/format.h>

#include "base/error.h"
#include "stage/generation/ngram_drafter.h"
#ifdef LFM2_TEST_DRAFTERS
#include "stage/generation/test_drafter.h"
#endif

namespace lfm2 {

namespace {

constexpr const char* kTest = "test:";

bool is_test([[maybe_unused]] const std::string& draft) {
#ifdef LFM2_TEST_DRAFTERS
  return draft.starts_with(kTest);
#else
  return false;
#endif
}

}  // namespace

void check_draft(const std::string& draft) {
  if (draft != "none" && draft != "ngram" && !is_test(draft))
    throw Error(ExitCode::kUsage, fmt::format("--draft: \"{}\", expected none or ngram", draft));
}

DrafterFactory make_drafters(const std::string& draft, [[maybe_unused]] int64_t vocab) {
#ifdef LFM2_TEST_DRAFTERS
  if (is_test(draft)) return test_drafters(draft.substr(std::string(kTest).size()), vocab);
#endif
  if (draft == "none") return {};
  return [](const Request&, int64_t) { return std::make_unique<NgramDrafter>(); };
}

}  // namespace lfm2
