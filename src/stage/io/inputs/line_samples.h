// The samples of an input of lines. All threads parse.
#pragma once

#include <cstdint>
#include <filesystem>

#include "stage/io/inputs/input_file.h"

namespace lfm2 {

class LineReader;
class ThreadPool;
struct LineContext;
enum class LineKind : uint8_t;

// The kind of the next line that is JSON, which decides the kind of job; kNone if there is none.
LineKind kind_of_lines(LineReader& reader);
// Whether an input consists of lines: .jsonl or .txt, possibly compressed, or "-", lines of JSON from standard input.
bool is_input_of_lines(const std::filesystem::path& path);
// Reads the samples of such an input, in the order of the lines; all threads parse. Error(kData) for the first refused
// line. If the first line is a batch line, a refused line becomes an error answer instead, unless context.strict. A
// refused line of /v1/embeddings goes through the model as one token, so that every sample has an input.
Samples read_lines(LineReader& reader, const LineContext& context, int64_t max_samples, ThreadPool& threads);

}  // namespace lfm2
