# Writes a C++ file with the bytes of the page's files: cmake -DOUTPUT=FILE.cpp -DFOLDER=FOLDER -P embed.cmake
set(code "// Written by embed.cmake.\n#include \"serve/page/page_files.h\"\n\nnamespace lfm2::serve {\nnamespace {\n\n")
foreach(file index.html page.css page.js server.js)
  file(READ ${FOLDER}/${file} bytes HEX)
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
  string(MAKE_C_IDENTIFIER ${file} name)
  string(APPEND code "constexpr char ${name}[] = {${bytes}};\n")
endforeach()
string(APPEND code [[

constexpr PageFile kFiles[] = {
    {"/", "text/html; charset=utf-8", {index_html, sizeof index_html}},
    {"/page.css", "text/css; charset=utf-8", {page_css, sizeof page_css}},
    {"/page.js", "text/javascript; charset=utf-8", {page_js, sizeof page_js}},
    {"/server.js", "text/javascript; charset=utf-8", {server_js, sizeof server_js}},
};

}  // namespace

std::span<const PageFile> page_files() { return kFiles; }

}  // namespace lfm2::serve
]])
file(WRITE ${OUTPUT} "${code}")
