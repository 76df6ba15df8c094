//! Addresses and prefixes as options of several commands take them.

use std::net::IpAddr;

use ipnet::IpNet;

/// A prefix, or an address as that of one host.
pub(crate) fn parse_prefix(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    address.or_else(|_| text.parse::<IpNet>()).map_err(|_| {
        "must be an IP address or a prefix, as 198.19.0.0/16, of at most 32 bits (128 of IPv6)"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_an_address_or_a_prefix() {
        assert_eq!(parse_prefix("198.18.0.1").unwrap().prefix_len(), 32);
        assert_eq!(parse_prefix("2001:2::1").unwrap().prefix_len(), 128);
        assert_eq!(parse_prefix("2001:2::/64").unwrap().prefix_len(), 64);
        for wrong in ["198.18.0.0/33", "198.18", "a/8", ""] {
            let said = parse_prefix(wrong).unwrap_err();
            assert!(said.contains("at most 32 bits"), "{said}");
        }
    }
}
