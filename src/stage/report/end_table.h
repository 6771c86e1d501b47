// What a job prints when it ends: what it did, how fast, and what each rank took.
#pragma once

#include <string>

#include "stage/report/report.h"

namespace lfm2 {

std::string end_table(const JobReport& report);
std::string score_lines(const JobReport& report);  // of the end table, what --score found; "" without it

}  // namespace lfm2
