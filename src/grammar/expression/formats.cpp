#include "grammar/expression/formats.h"

#include <fmt/format.h>

#include <string>

#include "grammar/expression/pattern.h"

namespace lfm2::grammar {

namespace {

// Each function returns a regular expression or a set of whole texts, after the grammar of the RFC that it names.

// RFC 3339, section 5.6: days of months, and 29 February in leap years.
constexpr std::string_view kDate =
    R"((?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8])))"
    R"(|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29))";
// RFC 3339, section 5.6. Leap seconds in UTC alone: with an offset, hour and minute would have to match it.
constexpr std::string_view kTime =
    R"((?:(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d))"
    R"(|23:59:60(?:\.\d+)?(?:[Zz]|[+-]00:00)))";
// RFC 3339, appendix A.
constexpr std::string_view kDurationTime = R"(T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S))";
constexpr std::string_view kDurationDate = R"((?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D))";
// RFC 2673, section 3.2, without leading zeros.
constexpr std::string_view kIpv4 = R"((?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
constexpr std::string_view kUuid = "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}";  // RFC 4122
constexpr std::string_view kJsonPointer = "(?:/(?:[^~/]|~[01])*)*";                         // RFC 6901

// RFC 4291, as RFC 3986 writes it.
std::string ipv6() {
  const std::string last = fmt::format("(?:h:h|{})", kIpv4);
  std::string groups = "(?:(?:h:){6}" + last + "|::(?:h:){5}" + last + "|h?::(?:h:){4}" + last;
  for (int before = 1; before <= 3; ++before)
    groups += fmt::format("|(?:(?:h:){{0,{}}}h)?::(?:h:){{{}}}{}", before, 4 - before, last);
  groups += "|(?:(?:h:){0,4}h)?::" + last + "|(?:(?:h:){0,5}h)?::h|(?:(?:h:){0,6}h)?::)";
  std::string pattern;
  for (const char byte : groups) pattern += byte == 'h' ? "[0-9A-Fa-f]{1,4}" : std::string(1, byte);
  return pattern;
}

// RFC 1123, section 2.1. Labels with "--" in the third and fourth place, as xn--, are left out: which of them are valid
// is no regular language. An internationalized name may have the other full stops of RFC 3490, section 3.1; labels
// beyond ASCII are left out.
TextSet hostname(bool international) {
  const TextSet label = parse_pattern("[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", Anchors::kWhole);
  const TextSet reserved = parse_pattern("^..--", Anchors::kSearch);
  const TextSet plain = both({label, complement(reserved)});
  const TextSet stop =
      international ? one_of({{'.', '.'}, {0x3002, 0x3002}, {0xff0e, 0xff0e}, {0xff61, 0xff61}}) : text(".");
  return both({concat({plain, repeat(concat({stop, plain}), 0)}), length(0, 253)});
}

// RFC 5321, section 4.1.2, with the literals of IPv4 and IPv6 addresses. `more` are further characters of the local
// part.
std::string email(std::string_view more) {
  const std::string atom = fmt::format(R"([A-Za-z0-9!#$%&'*+/=?^_`{{|}}~{}\-]+)", more);
  const std::string quoted = fmt::format(R"("(?:[\x20\x21\x23-\x5b\x5d-\x7e{}]|\\[\x20-\x7e])*")", more);
  const std::string_view part = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?";
  return fmt::format(R"((?:{0}(?:\.{0})*|{1})@(?:{2}(?:\.{2})*|\[(?:{3}|IPv6:{4})\]))", atom, quoted, part, kIpv4,
                     ipv6());
}

// RFC 3986, appendix A, and RFC 3987, section 2.2, which has more characters.
struct Uri {
  explicit Uri(bool international) {
    const std::string more = international ? std::string(kUcsChar) : "";
    const std::string query_more = international ? std::string(kUcsChar) + std::string(kPrivate) : "";
    const auto characters = [](std::string_view extra) {
      return fmt::format("(?:[A-Za-z0-9._~!$&'()*+,;=\\-{}]|%[0-9A-Fa-f]{{2}})", extra);
    };
    const std::string segment = characters(":@" + more) + "*", segment_nz = characters(":@" + more) + "+";
    const std::string literal = fmt::format(R"(\[(?:{}|[Vv][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:\-]+)\])", ipv6());
    const std::string authority =
        fmt::format("(?:{}*@)?(?:{}|{}*)(?::[0-9]*)?", characters(":" + more), literal, characters(more));
    const std::string rooted = fmt::format("//{}(?:/{})*|/(?:{}(?:/{})*)?", authority, segment, segment_nz, segment);
    const std::string tail =
        fmt::format("(?:\\?{}*)?(?:#{}*)?", characters(":@/?" + query_more), characters(":@/?" + more));
    absolute = fmt::format("[A-Za-z][A-Za-z0-9+.\\-]*:(?:{}|{}(?:/{})*|){}", rooted, segment_nz, segment, tail);
    relative = fmt::format("(?:{}|{}+(?:/{})*|){}", rooted, characters("@" + more), segment, tail);
  }

  static constexpr std::string_view kUcsChar =
      R"(\u{a0}-\u{d7ff}\u{f900}-\u{fdcf}\u{fdf0}-\u{ffef}\u{10000}-\u{1fffd}\u{20000}-\u{2fffd}\u{30000}-\u{3fffd})"
      R"(\u{40000}-\u{4fffd}\u{50000}-\u{5fffd}\u{60000}-\u{6fffd}\u{70000}-\u{7fffd}\u{80000}-\u{8fffd})"
      R"(\u{90000}-\u{9fffd}\u{a0000}-\u{afffd}\u{b0000}-\u{bfffd}\u{c0000}-\u{cfffd}\u{d0000}-\u{dfffd})"
      R"(\u{e1000}-\u{efffd})";
  static constexpr std::string_view kPrivate = R"(\u{e000}-\u{f8ff}\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd})";

  std::string absolute, relative;
};

// RFC 6570, section 2, with the apostrophe of erratum 6937 and without the reserved operators.
std::string uri_template() {
  const std::string literal =
      fmt::format(R"((?:[\x21\x23\x24\x26-\x3b\x3d\x3f-\x5b\x5d\x5f\x61-\x7a\x7e{}{}]|%[0-9A-Fa-f]{{2}}))",
                  Uri::kUcsChar, Uri::kPrivate);
  const std::string_view character = "(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})";
  const std::string variable = fmt::format(R"({0}(?:\.?{0})*(?::[1-9]\d{{0,3}}|\*)?)", character);
  return fmt::format(R"((?:{}|\{{[+#./;?&]?{}(?:,{})*\}})*)", literal, variable, variable);
}

}  // namespace

std::optional<TextSet> format_set(std::string_view name) {
  const auto whole = [](std::string_view pattern) { return parse_pattern(pattern, Anchors::kWhole); };
  if (name == "date-time") return whole(fmt::format("{}[Tt]{}", kDate, kTime));
  if (name == "date") return whole(kDate);
  if (name == "time") return whole(kTime);
  if (name == "duration") return whole(fmt::format("P(?:{0}(?:{1})?|{1}|\\d+W)", kDurationDate, kDurationTime));
  if (name == "email") return whole(email(""));
  if (name == "idn-email") return whole(email(R"(\u{80}-\u{10ffff})"));
  if (name == "hostname" || name == "idn-hostname") return hostname(name == "idn-hostname");
  if (name == "ipv4") return whole(kIpv4);
  if (name == "ipv6") return whole(ipv6());
  if (name == "uri") return whole(Uri(false).absolute);
  if (name == "iri") return whole(Uri(true).absolute);
  if (name == "uri-reference") return whole(Uri(false).absolute + "|" + Uri(false).relative);
  if (name == "iri-reference") return whole(Uri(true).absolute + "|" + Uri(true).relative);
  if (name == "uri-template") return whole(uri_template());
  if (name == "uuid") return whole(kUuid);
  if (name == "json-pointer") return whole(kJsonPointer);
  if (name == "relative-json-pointer") return whole(fmt::format("(?:0|[1-9]\\d*)(?:#|{})", kJsonPointer));
  if (name == "regex") throw Refusal("", "format", "\"regex\"", "a format whose texts are a regular language");
  return std::nullopt;
}

bool format_is_exact(std::string_view name) {
  for (const std::string_view subset :
       {"date-time", "time", "email", "idn-email", "hostname", "idn-hostname", "uri-template", "relative-json-pointer"})
    if (name == subset) return false;
  return true;
}

}  // namespace lfm2::grammar
