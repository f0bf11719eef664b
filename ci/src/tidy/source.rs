//! A Rust file taken apart far enough for rules: code, comments, and which lines are tests.

/// A Rust source. `code` and `comments` have the length and the lines of `text`; what does not
/// belong there is blank. String and character literals keep their quotes in `code`.
pub(crate) struct Source {
    pub(super) text: String,
    pub(crate) code: String,
    pub(super) comments: String,
    /// Whether the line, from 0, belongs to an item under `#[cfg(test)]`.
    test_lines: Vec<bool>,
}

/// A line of code outside comments.
pub(super) struct Line<'a> {
    /// Its number, from 1.
    pub(super) number: usize,
    /// Its code.
    pub(super) code: &'a str,
    /// The line as it stands, byte for byte as long as `code`.
    pub(super) text: &'a str,
    /// Whether it belongs to a test.
    pub(super) is_test: bool,
}

impl Source {
    pub(crate) fn new(text: String) -> Self {
        let (code, comments) = separate(&text);
        let test_lines = find_tests(&code);
        Self { text, code, comments, test_lines }
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let pairs = self.code.lines().zip(self.text.lines());
        pairs.zip(&self.test_lines).enumerate().map(|(index, ((code, text), &is_test))| Line {
            number: index + 1,
            code,
            text,
            is_test,
        })
    }

    /// The number of the line that holds byte `at`, from 1.
    pub(crate) fn line_of(&self, at: usize) -> usize {
        1 + self.text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count()
    }

    /// Whether byte `at` belongs to a test.
    pub(super) fn is_test_at(&self, at: usize) -> bool {
        self.test_lines.get(self.line_of(at) - 1).copied().unwrap_or(false)
    }
}

/// Where a byte belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Splits `text` into code and comments.
fn separate(text: &str) -> (String, String) {
    let bytes = text.as_bytes();
    let mut kinds = Vec::with_capacity(bytes.len());
    while kinds.len() < bytes.len() {
        let at = kinds.len();
        let rest = &bytes[at..];
        if rest.starts_with(b"//") {
            let end = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
            kinds.resize(at + end, Kind::Comment);
        } else if rest.starts_with(b"/*") {
            kinds.resize(at + block_comment(rest), Kind::Comment);
        } else if let Some(hashes) = raw_string(bytes, at) {
            let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
            let open = 2 + hashes;
            let end = find(&rest[open..], &close).map_or(rest.len(), |end| open + end);
            kinds.resize(at + open, Kind::Code);
            kinds.resize(at + end, Kind::Literal);
            kinds.resize((at + end + close.len()).min(bytes.len()), Kind::Code);
        } else if rest[0] == b'"' {
            let end = quoted(rest, b'"');
            kinds.push(Kind::Code);
            kinds.resize(at + end - 1, Kind::Literal);
            kinds.push(Kind::Code);
        } else if let Some(end) = character(text, at) {
            kinds.push(Kind::Code);
            kinds.resize(at + end - 1, Kind::Literal);
            kinds.push(Kind::Code);
        } else {
            kinds.push(Kind::Code);
        }
    }
    kinds.truncate(bytes.len());
    let keep = |wanted: Kind| {
        let shown = bytes.iter().zip(&kinds).map(|(&byte, &kind)| match byte {
            b'\n' => byte,
            _ if kind == wanted => byte,
            _ => b' ',
        });
        // A kind never changes within a character, so whole ones remain.
        String::from_utf8_lossy(&shown.collect::<Vec<u8>>()).into_owned()
    };
    (keep(Kind::Code), keep(Kind::Comment))
}

/// Length of the block comment that `rest` starts with; they nest.
fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// The number of `#` of the raw string that opens at `at` with its `r`.
fn raw_string(bytes: &[u8], at: usize) -> Option<usize> {
    let before = at.checked_sub(1).map(|before| bytes[before]);
    // `br` and `cr` are prefixes too; other letters make the `r` the end of a name.
    let is_end_of_name = before.is_some_and(|byte| is_name(byte) && !matches!(byte, b'b' | b'c'));
    if bytes[at] != b'r' || is_end_of_name {
        return None;
    }
    let hashes = bytes[at + 1..].iter().take_while(|&&byte| byte == b'#').count();
    (bytes.get(at + 1 + hashes) == Some(&b'"')).then_some(hashes)
}

/// Length of the literal in `quote` that `rest` starts with.
fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).clamp(2, rest.len().max(2))
}

/// Length of the character literal at `at`; a lifetime is none.
fn character(text: &str, at: usize) -> Option<usize> {
    let rest = text.get(at..)?.strip_prefix('\'')?;
    let first = rest.chars().next()?;
    if first == '\\' {
        return Some(quoted(&text.as_bytes()[at..], b'\''));
    }
    rest[first.len_utf8()..].starts_with('\'').then_some(first.len_utf8() + 2)
}

/// Marks the lines of items under `#[cfg(test)]`, or all under `#![cfg(test)]`.
fn find_tests(code: &str) -> Vec<bool> {
    let mut marks = vec![false; code.lines().count()];
    if code.contains("#![cfg(test)]") {
        marks.fill(true);
        return marks;
    }
    for attribute in ["#[cfg(test)]", "#[cfg(all(test"] {
        for (at, _) in code.match_indices(attribute) {
            let end = at + item_end(&code[at..]);
            let first = code[..at].lines().count().saturating_sub(1);
            let first = first + usize::from(code[..at].ends_with('\n'));
            let last = code[..end].lines().count();
            marks[first..last].fill(true);
        }
    }
    marks
}

/// Length of the item that `rest` starts with: to the first `;` outside brackets or the first
/// `}` that closes a block.
pub(super) fn item_end(rest: &str) -> usize {
    let (mut round, mut curly) = (0_i32, 0_i32);
    for (at, byte) in rest.bytes().enumerate() {
        match byte {
            b'(' | b'[' => round += 1,
            b')' | b']' => round -= 1,
            b'{' => curly += 1,
            b'}' => {
                curly -= 1;
                if curly <= 0 {
                    return at + 1;
                }
            }
            b';' if round == 0 && curly == 0 => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Whether `byte` can be part of a name.
pub(crate) fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Where `word` stands in `code` as a word of its own: no name continues at its ends.
pub(crate) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = at.checked_sub(1).is_some_and(|before| is_name(bytes[before]));
        let after = bytes.get(at + word.len()).is_some_and(|&byte| is_name(byte));
        let (first, last) = (word.as_bytes()[0], word.as_bytes()[word.len() - 1]);
        let continues = (before && is_name(first)) || (after && is_name(last));
        !continues
    })
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_not_code() {
        let text = r##"a("x // \" y"); // b "c"
let l: &'a str = r#"d " e"#; /* f /* g */ h */ i('"', '\'', 'ü', b'j');
let r#type = br"k"; "##;
        let source = Source::new(text.to_owned());
        assert_eq!(source.code.len(), text.len());
        let squeezed = source.code.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            squeezed,
            "a(\" \"); let l: &'a str = r#\" \"#; i(' ', ' ', ' ', b' '); let r#type = br\" \";"
        );
        let comments = source.comments.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(comments, "// b \"c\" /* f /* g */ h */");
    }

    #[test]
    fn unfinished_text_is_no_trouble() {
        for text in ["\"", "'", "/*", "r#\"", "\"\\", "'\\", "r", "b'", "/* /* */"] {
            assert_eq!(Source::new(text.to_owned()).code.len(), text.len(), "{text}");
        }
    }

    #[test]
    fn tests_are_found_to_their_last_brace() {
        let text = "fn a() {}\n#[cfg(test)]\nmod t {\n  fn b() { \"}\"; }\n}\nfn c() {}\n\
                    #[cfg(test)]\nuse x;\nfn d() {}\n";
        let source = Source::new(text.to_owned());
        let tests: Vec<usize> =
            source.lines().filter(|line| line.is_test).map(|line| line.number).collect();
        assert_eq!(tests, [2, 3, 4, 5, 7, 8]);
    }

    #[test]
    fn words_end_where_names_end() {
        let code = "unsafe_op rand::x brand::y unsafe { println!( eprintln!(";
        assert_eq!(words(code, "unsafe").count(), 1);
        assert_eq!(words(code, "rand::").count(), 1);
        assert_eq!(words(code, "println!").count(), 1);
    }
}
