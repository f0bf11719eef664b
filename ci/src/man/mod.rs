//! Manual pages of section 3, made of the header: one for each call, and one for the whole.

mod examples;

pub(crate) use self::examples::Examples;

/// A page: the name of its file, and its text.
pub(crate) type Page = (String, String);

/// The pages of a header.
pub(crate) fn pages(header: &str, examples: &Examples) -> Vec<Page> {
    let mut pages = Vec::new();
    let mut names = Vec::new();
    for (comment, code) in commented(header) {
        let Some(name) = function(code) else { continue };
        names.push(name.to_owned());
        pages.push((format!("{name}.3"), page(name, code, &comment, examples)));
    }
    let (first, _) = commented(header).next().unwrap_or_default();
    pages.push(("ringrail.3".to_owned(), overview(&first, &names, examples)));
    pages
}

/// The names of the calls of a header.
pub(crate) fn calls(header: &str) -> impl Iterator<Item = &str> {
    commented(header).filter_map(|(_, code)| function(code))
}

/// Each comment of the header with the code behind it, up to its end.
fn commented(header: &str) -> impl Iterator<Item = (String, &str)> {
    let mut rest = header;
    std::iter::from_fn(move || {
        let start = rest.find("/*")?;
        let end = start + rest[start..].find("*/")?;
        let comment = rest[start + 2..end]
            .lines()
            .map(|line| line.trim().trim_start_matches('*').trim())
            .collect::<Vec<_>>()
            .join("\n");
        rest = &rest[end + 2..];
        let length = rest.find(";").map_or(rest.len(), |at| at + 1);
        Some((comment.trim().to_owned(), rest[..length].trim()))
    })
}

/// The name of the function that `code` declares.
fn function(code: &str) -> Option<&str> {
    let is_declaration = code.ends_with(");") && !code.contains('{') && !code.starts_with('#');
    let (before, _) = code.split_once('(').filter(|_| is_declaration)?;
    before.rsplit([' ', '*']).next().filter(|name| name.starts_with("rr_"))
}

fn page(name: &str, code: &str, comment: &str, examples: &Examples) -> String {
    let (description, sections) = comment.split_once("\n# ").unwrap_or((comment, ""));
    let summary = description.split(['.', ':']).next().unwrap_or_default().replace('\n', " ");
    let mut text = head(name, summary.trim());
    text += ".SH SYNOPSIS\n.nf\n.B #include <ringrail.h>\n.PP\n";
    for line in code.lines() {
        text += &format!("{}\n", escape(line));
    }
    text += ".fi\n.PP\nLink with \\fI\\-lringrail\\fP.\n.SH DESCRIPTION\n";
    text += &paragraphs(description);
    text += &format!(".SH RETURN VALUE\n{}", paragraphs(return_value(code)));
    for section in sections.split("\n# ").filter(|section| !section.is_empty()) {
        let (title, body) = section.split_once('\n').unwrap_or((section, ""));
        text += &format!(".SH {}\n{}", title.trim().to_uppercase(), paragraphs(body));
    }
    text += ".SH EXAMPLES\n";
    text += &match examples.showing(name) {
        Some((program, piece)) => format!(
            "From {program}, which is installed with the documentation:\n{}",
            verbatim(&piece)
        ),
        None => paragraphs(NO_EXAMPLE),
    };
    text + ".SH SEE ALSO\n.BR ringrail (3),\n.BR rr_strerror (3),\n.BR ringrail (7)\n"
}

/// What a page says whose call is in no example.
const NO_EXAMPLE: &str = "ringrail(3) has a whole program. It shows how a domain, endpoints and \
                          peers are opened, and how errors are handled, which is the same for all \
                          calls.";

/// What the type before the name of a call says of its results.
fn return_value(code: &str) -> &'static str {
    let result = code.split_once(" rr_").or_else(|| code.split_once("*rr_"));
    match result.map_or("", |(result, _)| result.trim()) {
        "int" => {
            "On success RR_OK (0), or a positive number where the description names one. On \
             failure a negative code: rr_strerror(3) returns its meaning, rr_last_error(3) the \
             last error of this thread. Out arguments of a call that fails are left as they are, \
             except handles, which are null then."
        }
        "const char" | "const char *" => {
            "A text that ends with a zero byte. It belongs to the library and is not freed."
        }
        "void" | "void *" => "A pointer, or null: the description says when.",
        _ => "A number: see the description.",
    }
}

fn overview(comment: &str, names: &[String], examples: &Examples) -> String {
    let mut text = head("ringrail", "messages between HPC processes over Ethernet NICs");
    text += ".SH SYNOPSIS\n.nf\n.B #include <ringrail.h>\n.PP\n";
    text += "cc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs ringrail)\n.fi\n.SH DESCRIPTION\n";
    text += &paragraphs(comment);
    text += ".SH CALLS\n";
    for (index, name) in names.iter().enumerate() {
        let mark = if index + 1 < names.len() { "," } else { "" };
        text += &format!(".BR {name} (3){mark}\n");
    }
    if let Some((name, program)) = examples.programs().find(|(name, _)| *name == WHOLE) {
        text += &format!(".SH EXAMPLES\n{name}:\n{}", verbatim(program));
    }
    text + ".SH SEE ALSO\n.BR ringrail (7),\n.BR ringrail\\-perf (1),\n.BR ringrail\\-xdpd (8)\n"
}

/// The program that the page of the whole shows.
const WHOLE: &str = "pingpong.c";

/// Code as it stands.
fn verbatim(code: &str) -> String {
    format!(".PP\n.in +4n\n.nf\n{}\n.fi\n.in\n", escape(code.trim_end()))
}

fn head(name: &str, summary: &str) -> String {
    let summary = escape(summary);
    format!(".TH {name} 3 \"\" \"ringrail\" \"ringrail C API\"\n.SH NAME\n{name} \\- {summary}\n")
}

fn paragraphs(text: &str) -> String {
    let mut out = String::new();
    for paragraph in text.trim().split("\n\n") {
        out += &format!(".PP\n{}\n", escape(paragraph.trim()));
    }
    out
}

/// What troff would take for its own.
fn escape(text: &str) -> String {
    let plain = text.replace('\\', "\\e").replace('`', "");
    let lines = plain.lines().map(|line| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "/*\n * All of it.\n */\n#define A 1\n\n/*\n Does `it`. Or not.\n\n \
        # Errors\n\n RR_EINVAL: \\ is no way.\n*/\nint rr_do(int a,\n          int b);\n/*\n A \
        type.\n*/\ntypedef struct rr_x rr_x;\n/*\n The name.\n */\nconst char *rr_name(void);\n";

    #[test]
    fn each_call_has_a_page() {
        let examples = Examples::of("a.c", "int main(void)\n{\n    rr_do(1, 2);\n}\n");
        let pages = pages(HEADER, &examples);
        let names: Vec<&str> = pages.iter().map(|page| &*page.0).collect();
        assert_eq!(names, ["rr_do.3", "rr_name.3", "ringrail.3"]);
        let page = &pages[0].1;
        assert!(page.contains("rr_do \\- Does it\n"), "{page}");
        assert!(page.contains("int rr_do(int a,\n") && page.contains(".SH ERRORS\n"), "{page}");
        assert!(page.contains("\\e is no way"), "{page}");
        assert!(page.contains(".SH RETURN VALUE\n.PP\nOn success RR_OK"), "{page}");
        assert!(page.contains(".SH EXAMPLES\nFrom a.c") && page.contains("    rr_do(1, 2);"));
        let named = &pages[1].1;
        assert!(named.contains("A text that ends") && named.contains(NO_EXAMPLE), "{named}");
        assert!(pages[2].1.contains("All of it.") && pages[2].1.contains(".BR rr_do (3),\n"));
    }
}
