#include "stage/generation/make_drafters.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "stage/generation/ngram_drafter.h"
#include "stage/generation/proposed_drafts.h"
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

bool is_drafter_folder(const std::string& draft) { return draft != "none" && draft != "ngram" && !is_test(draft); }

void check_draft(const std::string& draft) {
  std::error_code error;
  if (is_drafter_folder(draft) && !std::filesystem::is_directory(draft, error))
    throw Error(ExitCode::kUsage,
                fmt::format("--draft: \"{}\", expected none, ngram or the folder of a drafter", draft));
}

DrafterFactory make_drafters(const std::string& draft, [[maybe_unused]] int64_t vocab) {
#ifdef LFM2_TEST_DRAFTERS
  if (is_test(draft)) return test_drafters(draft.substr(std::string(kTest).size()), vocab);
#endif
  if (draft == "none") return {};
  if (is_drafter_folder(draft)) return [](const Request&, int64_t) { return std::make_unique<ProposedDrafts>(); };
  return [](const Request&, int64_t) { return std::make_unique<NgramDrafter>(); };
}

}  // namespace lfm2
