#include "grammar/expression/formats.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lfm2::grammar {
namespace {

struct Format {
  std::string name;
  std::vector<std::string> valid, invalid;
};

const std::string kLabel63(63, 'a');

const std::vector<Format> kFormats = {
    {"date-time",
     {"1963-06-19T08:30:06.283185Z", "1998-12-31T23:59:60Z", "1990-12-31t15:59:50.123-08:00", "2024-02-29T00:00:00z"},
     {"1998-12-31T23:59:61Z", "1998-12-31T22:59:60Z", "1990-02-31T15:59:59Z", "1990-12-31T24:00:00Z",
      "1990-12-31T15:59:59-24:00", "1963-06-19 08:30:06Z", "1985-04-12T23:20:50", "2023-02-29T00:00:00Z"}},
    {"date",
     {"2020-02-29", "2000-02-29", "0400-02-29", "2021-01-31", "2021-04-30", "2021-12-31"},
     {"2021-02-29", "1900-02-29", "2021-04-31", "2021-13-01", "2021-00-01", "2021-01-00", "21-01-01", "2021-1-1"}},
    {"time",
     {"23:59:60Z", "23:59:60+00:00", "08:30:06.1+00:20", "12:00:00-00:00"},
     {"23:58:60Z", "22:59:60Z", "24:00:00Z", "12:00:00", "12:00:00,5Z", "12:00:00+24:00", "12:00:00+00:60"}},
    {"duration",
     {"P4DT12H30M5S", "P1Y2M3D", "PT36H", "P2W", "PT1M2S", "P01D"},
     {"P", "PT", "P1YT", "P1Y2D", "PT1H2S", "P1Y2W", "P1D2H", "PT0.5S", "P1"}},
    {"email",
     {"joe.bloggs@example.com", "\"joe bloggs\"@example.com", "te~st@a", "a@[127.0.0.1]", "a@[IPv6:::1]",
      "o'n+e@b-c.d"},
     {"2962", ".a@b", "a.@b", "a..b@c", "a@b=c", "a@[127.0.0.300]", "@b", "a@", "a b@c", "a@-b"}},
    {"idn-email", {"joe@example.com", "\u03b4\u03bf@example.com"}, {"user\uff20example.com", "2962"}},
    {"hostname",
     {"www.example.com", "1host", "a--b.com", kLabel63 + ".com"},
     {"", ".", ".a", "a.", "-a", "a-", "a_b", kLabel63 + "a", "xn--X", "ab--c",
      kLabel63 + "." + kLabel63 + "." + kLabel63 + "." + kLabel63, "\u212aelvin"}},
    {"idn-hostname", {"host-name", "a\u3002b"}, {"\u302ea", "a..b", "xn--X"}},
    {"ipv4",
     {"192.168.0.1", "0.0.0.0", "255.255.255.255"},
     {"256.1.1.1", "1.2.3", "01.2.3.4", "1.2.3.4.5", "1.2.3.4 "}},
    {"ipv6",
     {"::", "::1", "d6::", "1:2:3:4:5:6:7:8", "1::d6:192.168.0.1", "::ffff:192.168.0.1", "1:d6::42", "1:2:3:4:5:6:7::"},
     {"12345::", ":2:3:4:5:6:7:8", "1::d6::42", "1:2:3:4:5:6:7", "1:2:3:4:5:::8", "fe80::a%eth1", "1:2:3:4:5:6:7:8:9"}},
    {"uri",
     {"http://foo.bar/?baz=qux#quux", "mailto:John.Doe@example.com", "ldap://[2001:db8::7]/c=GB?a?b", "urn:a:b",
      "file:/etc"},
     {"//foo.bar/", "/abc", "abc", "http:// a", "bar,baz:foo", "http://a:b/", "http://[a", "http:/[::1]", "http://%6G",
      "a:\u00e9"}},
    {"uri-reference",
     {"", "abc", "/abc", "//", "#f", "?q", "./this:that", "http://a"},
     {"1:b", "/%zz", "/a\"b", "#a\\b", "//a@b@c/"}},
    {"iri",
     {"http://\u0192\u00f8\u00f8.\u00df\u00e5r/?\u2202\u00e9\u0153=\u03c0#\u03c0"},
     {"/abc", "\u00e2", "http://a b"}},
    {"iri-reference", {"\u00e2\u03c0\u03c0", "#\u0192r", ""}, {"#\u0192\\m"}},
    {"uri-template",
     {"http://e.com/d/{term:1}/{term}", "", "{+var}", "{x,y*}", "{a.b}", "a%41b"},
     {"{term", "{}", "{a,,b}", "{v:0}", "{v:10000}", "a}b", "{a..b}", "a b"}},
    {"uuid",
     {"2EB8AA08-aa98-11EA-B4AA-73B441D16380"},
     {"2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4ga-73b441d16380"}},
    {"json-pointer", {"", "/", "/foo/bar~0/baz~1/%a", "/\u00e9"}, {"/foo/bar~", "a", "#/", "/~2"}},
    {"relative-json-pointer", {"1", "0/foo", "0#", "120/a//"}, {"/foo", "-1/a", "01/a", "0##", "", "1#/a"}},
};

TEST(Formats, HaveTheirTextsAndNoOthers) {
  for (const Format& format : kFormats) {
    const std::optional<TextSet> set = format_set(format.name);
    ASSERT_TRUE(set) << format.name;
    Expressions expressions;
    const Expr expr = lower(*set, Spelling::kRaw, expressions);
    for (const std::string& text : format.valid)
      EXPECT_TRUE(expressions.matches(expr, text)) << format.name << ": " << text;
    for (const std::string& text : format.invalid) {
      EXPECT_FALSE(expressions.matches(expr, text)) << format.name << ": " << text;
    }
    const bool takes_all_characters = format.name.ends_with("json-pointer");
    for (const std::string& text : format.valid)
      EXPECT_EQ(expressions.matches(expr, text + "\n"), takes_all_characters && text.find('/') != text.npos)
          << format.name;
  }
}

TEST(Formats, UnknownNamesAreAnnotations) {
  EXPECT_FALSE(format_set("color"));
  EXPECT_FALSE(format_set(""));
  EXPECT_FALSE(format_set("Date"));
  EXPECT_THROW(format_set("regex"), Refusal);
  EXPECT_TRUE(format_is_exact("date"));
  EXPECT_FALSE(format_is_exact("hostname"));
}

}  // namespace
}  // namespace lfm2::grammar
