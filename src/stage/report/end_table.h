// What a job prints when it ends: what it did, how fast, and what each rank took.
#pragma once

#include <string>

#include "stage/report/report.h"

namespace lfm2 {

std::string end_table(const JobReport& report);
// The hash of the results, the verdict, what --score found and what is not finite.
std::string found_text(const JobReport& report);

}  // namespace lfm2
