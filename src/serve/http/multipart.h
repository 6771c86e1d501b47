// Parts of a body of multipart/form-data (RFC 7578), in which clients send files.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lfm2::http {

struct FormPart {
  std::string name;
  std::optional<std::string> file_name;  // of a file
  std::string_view content;              // within the body
};

// The parts of `body`, in their order. Error(kData) for another content type, a malformed body, or two parts of one
// name.
std::vector<FormPart> parse_form(std::string_view content_type, std::string_view body);

}  // namespace lfm2::http
