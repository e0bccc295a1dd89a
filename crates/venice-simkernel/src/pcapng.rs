//! Blocks of pcapng files, for Wireshark (draft-ietf-opsawg-pcapng). Packets are IPv4, times
//! nanoseconds.

const LINKTYPE_IPV4: u16 = 228;

/// Returns the head of a file: its section, and one interface of that name.
pub fn head(interface: &str) -> Vec<u8> {
    let mut section = Vec::new();
    section.extend(0x1a2b_3c4d_u32.to_le_bytes());
    section.extend([1, 0, 0, 0]);
    section.extend([0xff; 8]);
    option(&mut section, 4, b"venice sim");
    end_of_options(&mut section);
    let mut body = Vec::new();
    body.extend(u32::from(LINKTYPE_IPV4).to_le_bytes());
    body.extend([0; 4]);
    option(&mut body, 2, interface.as_bytes());
    // Times are in nanoseconds.
    option(&mut body, 9, &[9]);
    end_of_options(&mut body);
    [block(0x0a0d_0d0a, &section), block(1, &body)].concat()
}

/// Returns the block of a packet, whose first bytes are `bytes` of `len`, with a remark.
pub fn packet(at_ns: u64, bytes: &[u8], len: u32, remark: Option<&str>) -> Vec<u8> {
    let mut body = Vec::with_capacity(bytes.len() + 64);
    body.extend([0; 4]);
    body.extend(((at_ns >> 32) as u32).to_le_bytes());
    body.extend((at_ns as u32).to_le_bytes());
    body.extend((bytes.len() as u32).to_le_bytes());
    body.extend(len.to_le_bytes());
    body.extend(bytes);
    pad(&mut body);
    if let Some(remark) = remark {
        option(&mut body, 1, remark.as_bytes());
        end_of_options(&mut body);
    }
    block(6, &body)
}

/// Returns the header of an IPv4 packet of `len` bytes with itself: no identification, not to be
/// fragmented, 64 hops. `service` is its byte with the congestion marks.
pub fn ipv4(from: [u8; 4], to: [u8; 4], protocol: u8, service: u8, len: u16) -> [u8; 20] {
    let [high, low] = len.to_be_bytes();
    let mut header = [0; 20];
    header[..10].copy_from_slice(&[0x45, service, high, low, 0, 0, 0x40, 0, 64, protocol]);
    header[12..16].copy_from_slice(&from);
    header[16..].copy_from_slice(&to);
    let checksum = checksum(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

/// The checksum of RFC 1071 over a header of even length.
fn checksum(header: &[u8]) -> u16 {
    let (words, _) = header.as_chunks::<2>();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !(((folded & 0xffff) + (folded >> 16)) as u16)
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u32 + 12).to_le_bytes();
    let mut block = Vec::with_capacity(body.len() + 12);
    block.extend(kind.to_le_bytes());
    block.extend(len);
    block.extend(body);
    block.extend(len);
    block
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    pad(body);
}

fn end_of_options(body: &mut Vec<u8>) {
    body.extend([0; 4]);
}

fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_repeat_their_length() {
        let file =
            [head("link 0-1"), packet(1_234_567_890_123, &[7; 67], 1500, Some("lost"))].concat();
        let mut rest = file.as_slice();
        let mut kinds = Vec::new();
        while !rest.is_empty() {
            let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            let len = word(4) as usize;
            assert_eq!((len % 4, word(len - 4) as usize), (0, len));
            kinds.push(word(0));
            rest = &rest[len..];
        }
        assert_eq!(kinds, [0x0a0d_0d0a, 1, 6]);
    }

    #[test]
    fn ip_checksum_is_right() {
        // A packet with a valid checksum in place sums to ffff (RFC 1071).
        let header = ipv4([10, 86, 0, 3], [10, 86, 1, 2], 17, 0, 92);
        assert_eq!(checksum(&header), 0);
        assert_eq!(header[12..], [10, 86, 0, 3, 10, 86, 1, 2]);
    }
}
