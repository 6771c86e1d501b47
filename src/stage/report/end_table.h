// What a job prints when it ends: what it did, how fast, and what each rank took.
#pragma once

#include <string>

#include "stage/report/report.h"

namespace lfm2 {

std::string end_table(const JobReport& report);
std::string found_text(const JobReport& report);  // the hash of the results, the verdict and what --score found

}  // namespace lfm2
