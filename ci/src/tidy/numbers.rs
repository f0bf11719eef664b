//! Numbers that `engine/SPEC.md` says and the code has as constants are the same.

use super::Tree;

const SPEC: &str = "engine/SPEC.md";
/// Where the types of frames are.
const TYPES: &str = "engine/src/wire/frame.rs";

/// Sentences of the specification, whatever its lines and spaces, with `{}` for a number; and the
/// file and constant that say it, too.
const SENTENCES: [(&str, &str, &str); 12] = [
    ("Version of hellos and of all that follows them: **{}**", "wire/mod.rs", "VERSION"),
    ("out of band. {} bytes;", "wire/address.rs", "ADDRESS_BYTES"),
    ("address of the source engine, {} bytes", "wire/address.rs", "ADDRESS_BYTES"),
    ("Proof {} 0 \"RRPF\"", "wire/hello.rs", "HELLO_BYTES"),
    ("8 proof, 16 bytes {} ```", "wire/proof.rs", "PROOF_BYTES"),
    ("nonce, {} bytes", "proto/keys.rs", "NONCE_BYTES"),
    ("proof, {} bytes", "proto/keys.rs", "PROOF_TAG_BYTES"),
    ("tag, {} bytes", "proto/keys.rs", "PROOF_TAG_BYTES"),
    ("A segment is {} to", "wire/segment.rs", "SEGMENT_HEADER_BYTES"),
    ("to {} bytes long. A receiver MUST close", "wire/mod.rs", "SEGMENT_BYTES_MAX"),
    ("The last {} bytes of a datagram are a tag", "wire/packet.rs", "PACKET_TAG_BYTES"),
    ("starts at datagrams of {} bytes", "proto/packet/config.rs", "DATAGRAM_BYTES_MIN"),
];

/// Checks all of them, and the table of frames.
pub(super) fn check(tree: &Tree, found: &mut Vec<String>) {
    let Some(spec) = tree.other.get(SPEC) else { return };
    let flat = spec.split_whitespace().collect::<Vec<_>>().join(" ");
    for (sentence, file, name) in SENTENCES {
        let (before, after) = sentence.split_once("{}").unwrap_or((sentence, ""));
        let said: Vec<u64> = said(&flat, before, after).collect();
        if said.is_empty() {
            found.push(format!("{SPEC}: it has no `{sentence}`; change SENTENCES in ci/src/tidy"));
        }
        let file = format!("engine/src/{file}");
        for number in said {
            compare(tree, &file, name, number, &format!("`{sentence}`"), found);
        }
    }
    for line in spec.lines() {
        if let Some(frame) = Row::parse(line) {
            let kind = format!("KIND_{}", frame.name.replace(' ', "_"));
            compare(tree, TYPES, &kind, frame.number, frame.name, found);
            let file = format!("engine/{}", frame.file);
            // A file has one header or one whole frame.
            let length = |(name, _): &(&str, u64)| {
                name.ends_with("_HEADER_BYTES") || name.ends_with("_BYTES")
            };
            match constants(tree, &file).into_iter().find(length) {
                Some((name, _)) => compare(tree, &file, name, frame.bytes, frame.name, found),
                None => found.push(format!("{SPEC}: {file} does not say how long it is")),
            }
        }
    }
}

/// A line of the table of frames.
struct Row<'a> {
    number: u64,
    name: &'a str,
    file: &'a str,
    bytes: u64,
}

impl<'a> Row<'a> {
    /// `| 2 | [RTS](src/wire/rts.rs) | 40 + first bytes | ...`
    fn parse(line: &'a str) -> Option<Self> {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let number = cells.next()?.parse().ok()?;
        let (name, file) = cells.next()?.strip_prefix('[')?.split_once("](")?;
        let bytes = cells.next()?.split(' ').next()?.parse().ok()?;
        Some(Self { number, name, file: file.strip_suffix(')')?, bytes })
    }
}

/// The numbers between `before` and `after`.
fn said<'a>(text: &'a str, before: &'a str, after: &'a str) -> impl Iterator<Item = u64> + 'a {
    text.match_indices(before).filter_map(move |(at, _)| {
        let rest = &text[at + before.len()..];
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let mut end = digits(rest);
        // `65 536` is one number.
        while rest[end..].strip_prefix(' ').is_some_and(|more| digits(more) == 3) {
            end += 4;
        }
        let is_it = rest[end..].starts_with(after);
        is_it.then(|| rest[..end].replace(' ', "").parse().ok()).flatten()
    })
}

fn compare(tree: &Tree, file: &str, name: &str, said: u64, where_: &str, found: &mut Vec<String>) {
    match constants(tree, file).into_iter().find(|(known, _)| *known == name) {
        Some((_, value)) if value == said => {}
        Some((_, value)) => {
            found.push(format!("{SPEC}: {where_}: {said}, but {name} in {file} is {value}"));
        }
        None => found.push(format!("{SPEC}: {where_}: {file} has no number {name}")),
    }
}

/// Constants of a file that are whole numbers.
fn constants<'a>(tree: &'a Tree, file: &str) -> Vec<(&'a str, u64)> {
    let Some(source) = tree.rust.get(file) else { return Vec::new() };
    let all = source.code.lines().filter_map(|line| {
        let (head, value) = line.strip_suffix(';')?.split_once(" = ")?;
        let (_, head) = head.split_once("const ")?;
        let (name, _) = head.split_once(':')?;
        Some((name, evaluate(value)?))
    });
    all.collect()
}

/// A number, or a product or shift of two.
fn evaluate(text: &str) -> Option<u64> {
    let number = |text: &str| text.trim().replace('_', "").parse::<u64>().ok();
    if let Some((left, right)) = text.split_once('*') {
        return Some(number(left)? * number(right)?);
    }
    if let Some((left, right)) = text.split_once("<<") {
        return Some(number(left)? << number(right)?);
    }
    number(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Complaints about a row of the table and a sentence, without those about other sentences.
    fn complaints(spec: &str) -> Vec<String> {
        let mut tree = Tree::default();
        tree.add(SPEC.into(), spec.into());
        tree.add(TYPES.into(), "const KIND_LANE_LOST: u8 = 12;\n".into());
        let lost = "pub(crate) const LANE_LOST_BYTES: usize = 8;\n";
        tree.add("engine/src/wire/lost.rs".into(), lost.into());
        let version =
            "pub(crate) const VERSION: u16 = 7;\nconst SEGMENT_BYTES_MAX: u32 = 64 * 1024;\n";
        tree.add("engine/src/wire/mod.rs".into(), version.into());
        let mut found = Vec::new();
        check(&tree, &mut found);
        found.retain(|complaint| !complaint.contains("it has no `"));
        found
    }

    #[test]
    fn sentences_say_what_constants_are() {
        assert_eq!(complaints("Version of hellos and\nof all that follows them: **7**."), [""; 0]);
        let found = complaints("Version of hellos and of all that follows them: **4**.");
        assert!(found.len() == 1 && found[0].contains("4, but VERSION"), "{found:?}");
        let long = |bytes: &str| format!("24 to {bytes} bytes\nlong. A receiver MUST close it");
        assert_eq!(complaints(&long("65 536")), [""; 0]);
        assert!(complaints(&long("65 535"))[0].contains("is 65536"));
    }

    #[test]
    fn rows_say_what_frames_are() {
        let row = |number: u8, bytes: &str| {
            complaints(&format!("| {number} | [LANE LOST](src/wire/lost.rs) | {bytes} | | lost |"))
        };
        assert_eq!(row(12, "8"), [""; 0]);
        assert_eq!(row(12, "8 + more"), [""; 0]);
        assert!(row(11, "8")[0].contains("KIND_LANE_LOST"));
        assert!(row(12, "9")[0].contains("LANE_LOST_BYTES"));
        let elsewhere = complaints("| 3 | [X](src/wire/x.rs) | 1 | | |");
        assert_eq!(elsewhere.len(), 2, "{elsewhere:?}");
    }

    #[test]
    fn a_sentence_that_is_gone_is_missed() {
        let mut tree = Tree::default();
        tree.add(SPEC.into(), String::new());
        let mut found = Vec::new();
        check(&tree, &mut found);
        assert_eq!(found.len(), SENTENCES.len());
    }
}
