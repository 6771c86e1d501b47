// The drafters that --draft names.
#pragma once

#include <string>

#include "stage/generation/drafter.h"

namespace lfm2 {

constexpr int64_t kMaxDrafts = 15;      // --draft-length
constexpr int64_t kChosenDrafts = 8;    // at most, where the number is chosen
constexpr int64_t kMaxDraftRows = 256;  // drafts of all sequences in a step: more rows take longer in proportion

// Whether --draft names the folder of a DSpark drafter, rather than a way to make drafts.
bool is_drafter_folder(const std::string& draft);
// Error(kUsage) unless --draft may have this value.
void check_draft(const std::string& draft);
// Empty for "none". `vocab`: of the model.
DrafterFactory make_drafters(const std::string& draft, int64_t vocab);

}  // namespace lfm2
