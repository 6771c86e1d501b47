// The bytes of the page's files, which embed.cmake writes into the program.
#pragma once

#include <span>
#include <string_view>

namespace lfm2::serve {

struct PageFile {
  std::string_view path, content_type, bytes;
};

std::span<const PageFile> page_files();

}  // namespace lfm2::serve
