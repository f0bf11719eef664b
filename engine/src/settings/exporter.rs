//! The setting of the address at which statistics are exported.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::value::ValueKind;

/// An address and a port, or a port of the loopback.
pub(crate) struct ExportAddress;

impl ValueKind for ExportAddress {
    type Value = Option<SocketAddr>;
    type View<'a> = Option<SocketAddr>;

    fn expected() -> String {
        "`none`, a port of 127.0.0.1 such as 9464, or an address and a port such as \
         10.1.0.1:9464; port 0 is any free one"
            .into()
    }

    fn parse(text: &str) -> Result<Option<SocketAddr>, String> {
        if text == "none" {
            return Ok(None);
        }
        if let Ok(port) = text.parse() {
            return Ok(Some((IpAddr::from(Ipv4Addr::LOCALHOST), port).into()));
        }
        let address: SocketAddr =
            text.parse().map_err(|_| "it is not an address and a port".to_owned())?;
        if address.ip().is_unspecified() {
            // Any host that can reach this one could read them, which is rarely intended.
            return Err("it means every address of this host: name the one to listen on".into());
        }
        Ok(Some(address))
    }

    fn format(value: &Option<SocketAddr>) -> String {
        value.map_or_else(|| "none".into(), |address| address.to_string())
    }

    fn view(value: &Option<SocketAddr>) -> Option<SocketAddr> {
        *value
    }

    fn own(view: Option<SocketAddr>) -> Option<SocketAddr> {
        view
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explicit_address_is_needed_beyond_loopback() {
        let parse = ExportAddress::parse;
        assert_eq!(parse("none"), Ok(None));
        for (text, address) in [
            ("9464", "127.0.0.1:9464"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("10.1.0.1:9464", "10.1.0.1:9464"),
            ("[::1]:80", "[::1]:80"),
        ] {
            let read = parse(text).unwrap();
            assert_eq!(read, Some(address.parse().unwrap()));
            assert_eq!(parse(&ExportAddress::format(&read)), Ok(read));
        }
        for every in ["0.0.0.0:9464", "[::]:9464"] {
            assert!(parse(every).unwrap_err().contains("every address"), "{every}");
        }
        for garbage in ["", "10.1.0.1", "localhost:80", "65536", ":80"] {
            assert!(parse(garbage).is_err(), "{garbage}");
        }
    }
}
