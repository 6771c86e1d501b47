// The table that a job prints at its end: its results, its speed, and the time and memory of each rank.
#pragma once

#include <string>

#include "stage/report/report.h"

namespace lfm2 {

std::string end_table(const JobReport& report);
// The hash of the results, the verdict of --reference, the sums of --score, and the count of results that are not
// finite.
std::string found_text(const JobReport& report);

}  // namespace lfm2
