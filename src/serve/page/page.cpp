// Answers with the page's files, and with the headers that restrict what a browser lets them do.
#include "serve/page/page.h"

#include "serve/page/page_files.h"

namespace lfm2::serve {

namespace {

// The page runs its own script and asks its own server, nothing else. Texts of models are not to be trusted, so no text
// may become markup ('require-trusted-types-for'). The page's icon is an empty "data:" address.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

http::Response answer_of(const PageFile& file) {
  return {.content_type = std::string(file.content_type),
          .body = std::string(file.bytes),
          .headers = {{"Content-Security-Policy", kPolicy},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cross-Origin-Resource-Policy", "same-origin"},
                      {"Referrer-Policy", "same-origin"},
                      {"Cache-Control", "no-cache"}}};
}

}  // namespace

std::vector<std::string> page_paths() {
  std::vector<std::string> paths;
  for (const PageFile& file : page_files()) paths.emplace_back(file.path);
  return paths;
}

void add_page(http::Router& router) {
  for (const PageFile& file : page_files())
    router.add("GET", file.path,
               [&file](http::Request&&, const http::Responder& responder) { responder.answer(answer_of(file)); });
}

}  // namespace lfm2::serve
